"""How many texts are longer than what a model reads of them: their ends are lost, and nobody would see it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.encoders.model_loading import prompt_of
from steps.encoders.towers import endpoint_of, route

SAMPLE = 2000  # texts that are looked at
_MIN_SHARE = 0.01  # share from which on it is said
_BATCH = 64  # texts of which the tokens are in memory at once
_ENDLESS = 1_000_000  # tokens; where a tokenizer knows no limit it has one of 10^30


@dataclass(frozen=True)
class Cut:
    """Of some texts the share that has more tokens than `limit`, and the teacher's knob that says how many it reads."""

    share: float
    limit: int
    unit: str
    knob: str

    def tell(self, stage: str, named: str) -> None:
        """Say so on stderr where one in a hundred is cut; `named` is the knob with whose it is."""
        if self.share >= _MIN_SHARE:
            print(
                f"{stage}: {100 * self.share:.0f} % of {self.unit} are longer than {self.limit} tokens; their ends are"
                f" not read ({named})",
                file=sys.stderr,
            )


def sample_rows(count: int, seed: int, limit: int = SAMPLE) -> np.ndarray:
    """Rows of texts, ascending: `limit` of `count`, drawn by seed, or all."""
    rows = np.random.default_rng((seed, 9)).choice(count, min(count, limit), replace=False)
    return np.sort(rows)


def cut_documents(tower: SentenceTransformer, texts: Sequence[str]) -> Cut | None:
    """How many of these texts a tower, or the server behind it, reads not to their end; None where it has no limit."""
    prompt = tower.prompts.get("document") or ""
    if endpoint := endpoint_of(tower, "document"):
        prompted = [prompt + text for text in texts]
        longer = sum(len(endpoint.cut(text)) < len(text) for text in prompted)
        return Cut(longer / max(1, len(texts)), endpoint.model.max_length, "documents", "document.max_length")
    reader = route(tower, "document")
    return _cut(reader, texts, reader.max_seq_length, "documents", "max_document_length", prompt=prompt or None)


def cut_of_tokens(model: Any, texts: Sequence[str]) -> Cut | None:
    """The same of documents that a late interaction model reads."""
    limit = model[0].document_length or model.max_seq_length
    prompt = model.prompts.get("document") or None
    return _cut(model, texts, limit, "documents", "max_document_length", prompt=prompt, task="document")


def cut_pairs(ranker: Any, pairs: Sequence[tuple[str, str]]) -> Cut | None:
    """The same of pairs of a query and a document that a cross encoder reads."""
    unit = "pairs of a query and a document"
    return _cut(ranker, pairs, ranker.max_seq_length, unit, "max_length", prompt=prompt_of(ranker))


def _cut(model: Any, items: Sequence[Any], limit: float | None, unit: str, knob: str, **how: Any) -> Cut | None:
    if limit is None or limit >= _ENDLESS:
        return None
    longer = 0
    for start in range(0, len(items), _BATCH):
        features = model.preprocess(list(items[start : start + _BATCH]), max_length=int(limit) + 1, **how)
        longer += int((features["attention_mask"].sum(dim=1) > limit).sum())
    return Cut(longer / max(1, len(items)), int(limit), unit, knob)
