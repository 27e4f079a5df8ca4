"""The teacher's embedding of each token of its vocabulary alone: where a token table starts."""

from hashlib import sha256

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from slimtower.common.files import cache_root
from steps.core.code import code_digest
from steps.core.progress import Bar
from steps.core.vector_store import Embeddings, VectorCache, text_key
from steps.core.versions import library_versions
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import autocast
from steps.endpoint.module import Endpoint


def token_vectors(
    tower: SentenceTransformer, fingerprint: str, *, precision: Precision, batch_size: int, shard_texts: int
) -> np.ndarray:
    """Embed every token id between the tokenizer's special tokens, float32 `(vocabulary, dim)`, once.

    An endpoint is asked for each token as a text. UserError for a vector that is not finite.
    """
    if isinstance(endpoint := tower[0], Endpoint):
        texts = token_texts(tower)
        endpoint.announce(texts, "", "embed tokens")
        return endpoint.embed(texts)
    settings = (fingerprint, resolve_precision(precision), batch_size, code_digest(__name__), *library_versions())
    key = sha256(repr(settings).encode()).hexdigest()
    cache = VectorCache(cache_root() / "tokens" / key[:24], "float32")
    ids = [str(token) for token in range(len(tower.tokenizer))]
    size = batch_size * max(1, shard_texts // batch_size)  # the same batches, wherever a killed run goes on
    shards = (range(start, min(start + size, len(ids))) for start in range(0, len(ids), size))
    missing = [shard for shard in shards if any(cache.missing(ids[token] for token in shard))]
    with Bar(sum(map(len, missing)), "embed tokens", "tokens") as bar:
        for shard in missing:
            vectors = _embed_tokens(tower, shard, precision, batch_size, bar)
            cache.add([text_key(ids[token]) for token in shard], Embeddings(vectors, np.linalg.norm(vectors, axis=1)))
    return cache.load(ids)


def token_texts(tower: SentenceTransformer) -> list[str]:
    """Each token of an endpoint's tokenizer as a text: one that goes on a word without the sign that says so (##)."""
    tokenizer = tower.tokenizer
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    prefix = getattr(model, "continuing_subword_prefix", None) or ""
    texts = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    return [text.removeprefix(prefix) or text for text in texts]


def _embed_tokens(
    tower: SentenceTransformer, tokens: range, precision: Precision, batch_size: int, bar: Bar
) -> np.ndarray:
    before, after = _special_ids(tower)
    rows = []
    for start in range(tokens.start, tokens.stop, batch_size):
        ids = torch.arange(start, min(start + batch_size, tokens.stop))
        prefix, suffix = (torch.tensor(special, dtype=torch.long).expand(len(ids), -1) for special in (before, after))
        batch = torch.cat([prefix, ids[:, None], suffix], dim=1).to(tower.device)
        features = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
        with torch.inference_mode(), autocast(precision):
            rows.append(tower(features)["sentence_embedding"].float().cpu().numpy())
        bar.advance(len(ids))
    return np.concatenate(rows)


def _special_ids(tower: SentenceTransformer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and behind a text."""
    encoded = tower.tokenizer("a", return_special_tokens_mask=True)
    mask, ids = encoded["special_tokens_mask"], encoded["input_ids"]
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]
