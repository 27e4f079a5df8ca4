"""The teacher's embedding of each token of its vocabulary alone: where a token table starts."""

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from steps.core.endpoint import Endpoint
from steps.core.precision import Precision
from steps.core.progress import progress
from steps.core.towers import autocast


def token_vectors(tower: SentenceTransformer, *, precision: Precision, batch_size: int) -> np.ndarray:
    """Embed every token id between the tokenizer's special tokens, float32 `(vocabulary, dim)`.

    An endpoint, which has another tokenizer, is asked for each token as a text.
    """
    if isinstance(endpoint := tower[0], Endpoint):
        texts = token_texts(tower)
        endpoint.announce(texts, "", "embed tokens")
        return endpoint.embed(texts)
    before, after = _special_ids(tower)
    size = len(tower.tokenizer)
    rows = []
    starts = range(0, size, batch_size)
    for start in progress(starts, len(starts), "embed tokens"):
        ids = torch.arange(start, min(start + batch_size, size))
        left, right = (torch.tensor(tokens, dtype=torch.long).expand(len(ids), -1) for tokens in (before, after))
        batch = torch.cat([left, ids[:, None], right], dim=1).to(tower.device)
        features = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
        with torch.inference_mode(), autocast(precision):
            rows.append(tower(features)["sentence_embedding"].float().cpu().numpy())
    return np.concatenate(rows)


def token_texts(tower: SentenceTransformer) -> list[str]:
    """Each token of an endpoint's tokenizer as a text."""
    return [tower.tokenizer.decode([token]) for token in range(len(tower.tokenizer))]


def _special_ids(tower: SentenceTransformer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and behind a text."""
    encoded = tower.tokenizer("a", return_special_tokens_mask=True)
    mask, ids = encoded["special_tokens_mask"], encoded["input_ids"]
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]
