"""Cross encoders: scores of pairs of a text and a document, and embeddings of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from steps.core.vector_store import TextFile, Texts
from steps.encoders.cut_texts import Cut, cut_pairs
from steps.encoders.precision import Precision
from steps.retrieval.rankers import (
    Pair,
    check_layer_scores,
    is_dual_pooled,
    layer_logits,
    load_ranker,
    pair_embeddings,
    pair_layer_scores,
    pair_scores,
    ranker_depth,
)
from steps.scorers.base import Network, Reading, ReadTexts, Reranker, Scorer, check_finite


class CrossEncoderScorer(Scorer):
    """A ranker, and the documents' texts on disk."""

    kind = "cross_encoder"
    layered = True

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, reading: Reading) -> None:
        self.reading, self.ranker = reading, load_ranker(teach / "tower")
        self.embeds = "pooled" if is_dual_pooled(self.ranker) else "joint"
        self.documents = TextFile(scratch, documents)

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        return self._read(pair_scores, texts, documents).reshape(documents.shape)

    def cut(self, pairs: Sequence[Pair]) -> Cut | None:
        return cut_pairs(self.ranker, pairs)

    def check(self, *, pairs: bool, layers: bool) -> None:
        if pairs:
            pair_embeddings(self.ranker, [("a query", "a document")], precision="fp32", batch_size=1)
        if layers:
            check_layer_scores(self.ranker)

    def pair_embeddings(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        return self._read(pair_embeddings, texts, documents)

    def layer_scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """What its head, or its pooling, makes of each layer's states: float32 `(texts, k, layers)`."""
        return self._read(pair_layer_scores, texts, documents)

    def _read(self, compute: Callable[..., np.ndarray], texts: list[str], documents: np.ndarray) -> np.ndarray:
        text_of = self.documents.read(np.unique(documents))
        pairs = [(text, text_of[row]) for text, rows in zip(texts, documents.tolist(), strict=True) for row in rows]
        precision, batch_size, _ = self.reading
        values = compute(self.ranker, pairs, precision=precision, batch_size=batch_size)
        return values.reshape(*documents.shape, -1)

    @classmethod
    def reranker(cls, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
        return CrossEncoderReranker(tower, precision, batch_size)

    @classmethod
    def network(cls, tower: Path, max_length: int, max_document_length: int) -> Network:
        """It reads at most as many tokens of a pair as both lengths together."""
        return CrossEncoderNetwork(tower, max_length + max_document_length)


class CrossEncoderReranker:
    """A ranker of candidates."""

    def __init__(self, tower: Path, precision: Precision, batch_size: int) -> None:
        self.ranker, self.precision, self.batch_size = load_ranker(tower), precision, batch_size

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read_texts: ReadTexts) -> list[np.ndarray]:
        rows = np.unique(np.concatenate(candidates))
        texts = dict(zip(rows.tolist(), read_texts(rows), strict=True))
        pairs = [
            (query, texts[row])
            for query, document_rows in zip(queries, candidates, strict=True)
            for row in document_rows.tolist()
        ]
        scores = pair_scores(self.ranker, pairs, precision=self.precision, batch_size=self.batch_size)
        return np.split(check_finite(scores), np.cumsum([len(document_rows) for document_rows in candidates])[:-1])


class CrossEncoderNetwork:
    """Its logit, and what its head makes of each layer (LEAD, Eq. 3)."""

    kind = CrossEncoderScorer.kind
    candidates: Literal["batch", "own"] = "own"  # all pairs of a batch would cost the square of it

    def __init__(self, tower: Path, max_pair_length: int) -> None:
        ranker = load_ranker(tower).eval()
        self.model, self.depth, self._has_checked = ranker, ranker_depth(ranker), False
        self.length = min(ranker.max_seq_length or max_pair_length, max_pair_length)

    def scores(self, texts: list[str], documents: list[str], pairs: np.ndarray, layers: Sequence[int]) -> Tensor:
        if layers and not self._has_checked:
            check_layer_scores(self.model)
            self._has_checked = True
        text_pairs = [(texts[text], documents[document]) for text, document in pairs.T.tolist()]
        return layer_logits(self.model, text_pairs, [self.depth - 1, *layers], self.length)
