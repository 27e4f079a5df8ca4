"""x' = Dec(Enc(mask(x)) + eps): a seq2seq model that writes variants of texts (EmbedDistill, Sec. 4.3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.encoders.bases import resolve_base
from steps.encoders.model_loading import check_tokenizer, loading
from steps.encoders.towers import device, positions_of
from steps.generate.params import GenerateParams

MASK_RATIO = 0.1  # chance of each token to be masked; every query loses at least one token
TOP_K = 10  # tokens to draw from
TEMPERATURE = 0.7  # of the draw; below 1 = closer to the likeliest
MAX_TOKENS = 32  # of a query, read and written; the rest is cut
DOCUMENT_TOKENS = 256  # of a document that document_model reads


@dataclass(frozen=True)
class Denoiser:
    """An encoder-decoder and its tokenizer."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class Variants:
    """One decoded text a source, in the order of the sources."""

    texts: list[str]
    masked_share: float
    """Masked tokens over all maskable tokens."""


def load_denoiser(params: GenerateParams) -> Denoiser:
    """The pretrained seq2seq model `model`, a folder or a name.

    UserError when it cannot be loaded, has no mask token, or has fewer positions than MAX_TOKENS.
    """
    name, instead = params.model, 'facebook/bart-base, or "" for the small BART trained here'
    loaded = _load(name, "model", instead, MAX_TOKENS)
    if loaded.tokenizer.mask_token_id is None or loaded.tokenizer.pad_token_id is None:
        raise UserError(
            f"params.yaml: generate.model {name!r} has no mask or padding token; choose a model of the BART family"
        )
    return loaded


def load_writer(params: GenerateParams) -> Denoiser:
    """The pretrained model `document_model`, which writes queries from documents.

    UserError when it cannot be loaded, or has fewer positions than DOCUMENT_TOKENS.
    """
    instead = 'doc2query/msmarco-t5-base-v1, or "" for titles and sentences alone'
    return _load(params.document_model, "document_model", instead, DOCUMENT_TOKENS)


def _load(name: str, knob: str, instead: str, length: int) -> Denoiser:
    folder = resolve_base(name)
    with loading(folder, f"generate.{knob} a seq2seq folder or a reachable name such as {instead}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
        check_tokenizer(tokenizer, model, folder)
    positions = positions_of(model)
    if positions is not None and length > positions:
        raise UserError(
            f"params.yaml: generate.{knob}: {name} has {positions} positions, but reads {length} tokens; name another"
            " one"
        )
    tokens = {name: value for name, value in model.generation_config.to_dict().items() if name.endswith("_token_id")}
    model.generation_config = GenerationConfig(**tokens)  # all else that it was saved with is said by the params
    return Denoiser(model.float().to(device()).eval(), tokenizer)


def write_variants(
    denoiser: Denoiser, texts: Sequence[str], sigma: float, seed: int, params: GenerateParams
) -> Variants:
    """Decode one variant of each text under noise of deviation `sigma`; equal arguments give equal texts."""
    generator = torch.Generator().manual_seed(seed)
    masked = maskable_total = 0

    def write(batch: list[str]) -> list[str]:
        nonlocal masked, maskable_total
        ids, attention, maskable = tokenize(denoiser, batch, MAX_TOKENS)
        hidden_ids = mask_tokens(ids, maskable, MASK_RATIO, denoiser.tokenizer.mask_token_id, generator)
        masked += int((hidden_ids != ids).sum())
        maskable_total += int(maskable.sum())
        states = encoder_states(denoiser.model, hidden_ids, attention)
        return decode(denoiser, add_noise(states, sigma, generator), attention)

    written = _by_length(texts, params.batch_size, seed, f"generate, sigma {sigma:g}", write)
    return Variants(written, masked / max(1, maskable_total))


def _by_length(
    texts: Sequence[str], batch_size: int, seed: int, caption: str, write: Callable[[list[str]], list[str]]
) -> list[str]:
    """What `write` makes of each text, in batches of texts of like length."""
    order = sorted(range(len(texts)), key=lambda index: (len(texts[index]), index))
    written = [""] * len(texts)
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)  # sampling in `generate` draws from the global generator
        starts = range(0, len(order), batch_size)
        for start in progress(starts, len(starts), caption):
            rows = order[start : start + batch_size]
            for index, text in zip(rows, write([texts[index] for index in rows]), strict=True):
                written[index] = text
    return written


def write_queries(writer: Denoiser, documents: Sequence[str], seed: int, params: GenerateParams) -> list[str]:
    """A query for each document, of which the first DOCUMENT_TOKENS are read (doc2query: Nogueira et al., 2019)."""
    batch_size = max(1, params.batch_size * MAX_TOKENS // DOCUMENT_TOKENS)  # as many tokens as of queries

    def write(batch: list[str]) -> list[str]:
        ids, attention, _ = tokenize(writer, batch, DOCUMENT_TOKENS)
        return decode(writer, encoder_states(writer.model, ids, attention), attention)

    return _by_length(documents, batch_size, seed, "queries of documents", write)


def tokenize(denoiser: Denoiser, texts: list[str], limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and which tokens may be masked, each `(batch, tokens)`; at most `limit` tokens."""
    batch = denoiser.tokenizer(
        texts, truncation=True, max_length=limit, padding=True, return_special_tokens_mask=True, return_tensors="pt"
    )
    special = batch["special_tokens_mask"].bool() | ~batch["attention_mask"].bool()
    return batch["input_ids"], batch["attention_mask"], ~special


def encoder_states(model: Any, ids: Tensor, attention: Tensor) -> Tensor:
    """Enc(x): last encoder states `(batch, tokens, dim)` on the model's device."""
    outputs = model.get_encoder()(input_ids=ids.to(model.device), attention_mask=attention.to(model.device))
    states: Tensor = outputs.last_hidden_state
    return states


def add_noise(states: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """States plus eps ~ N(0, sigma^2 I), drawn on the CPU so that every device sees the same noise."""
    noise = torch.randn(states.shape, generator=generator)
    return states + sigma * noise.to(states.device, states.dtype)


def decode(denoiser: Denoiser, states: Tensor, attention: Tensor) -> list[str]:
    """Dec(states): one text a row, by seeded sampling."""
    ids = denoiser.model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=attention.to(states.device),
        max_new_tokens=MAX_TOKENS,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP_K,
    )
    texts: list[str] = denoiser.tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [" ".join(text.split()) for text in texts]


def mask_tokens(ids: Tensor, maskable: Tensor, ratio: float, mask_id: int, generator: torch.Generator) -> Tensor:
    """Copy of `ids` `(batch, tokens)` in which each `maskable` token is `mask_id` with chance `ratio`.

    A row that no draw hits loses one random maskable token all the same, unless `ratio` is 0: a query of eight tokens
    would else pass whole in four of ten cases at 10 %, and the decoder would copy it. Rows without a maskable token
    stay as they are. EmbedDistill, Sec. 4.3 and App. E.
    """
    if ratio == 0:
        return ids.clone()
    draws = torch.rand(ids.shape, generator=generator).masked_fill(~maskable, 2.0)
    hit = draws < ratio
    smallest = torch.zeros_like(hit)
    smallest[torch.arange(len(ids)), draws.argmin(dim=1)] = True
    hit |= smallest & maskable & ~hit.any(dim=1, keepdim=True)
    return ids.masked_fill(hit, mask_id)
