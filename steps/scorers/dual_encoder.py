"""A dual encoder's scores: inner products of its embeddings."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from slimtower.common.names import Role
from steps.core.vector_store import Texts
from steps.encoders.cut_texts import Cut, cut_documents
from steps.encoders.precision import Precision
from steps.encoders.towers import encode, load_tower, route
from steps.encoders.vector_cache import embed_once
from steps.scorers.base import Reading, Reranker, Scorer, VectorReranker, check_finite, distinct_once

_TEXTS = 256  # multiplied at once: a copy of their documents' vectors is made


class DualEncoderScorer(Scorer):
    """A tower, and the documents, which it embeds once."""

    kind = "dual_encoder"

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, reading: Reading) -> None:
        self.reading, self.fingerprint, self.texts, self.scratch = reading, fingerprint, documents, scratch
        tower = load_tower(teach / "tower")  # once, as both roles of a server know what either has been answered
        self.document_tower, self.query_tower = route(tower, "document"), route(tower, "query")

    @cached_property
    def documents(self) -> np.ndarray:
        """The vectors, made once a text is to be scored: of a run that was finished before none is."""
        embed_once(
            self.document_tower,
            self.fingerprint,
            "document",
            self.texts,
            self.scratch,
            dtype="float32",
            **self.reading._asdict(),
            caption="embed documents",
        )
        vectors: np.ndarray = np.load(self.scratch, mmap_mode="r")
        return vectors

    def cut(self, pairs: Sequence[tuple[str, str]]) -> Cut | None:
        return cut_documents(self.document_tower, sorted({document for _, document in pairs}))

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        precision, batch_size, _ = self.reading

        def embed(distinct: list[str]) -> list[np.ndarray]:
            return list(encode(self.query_tower, distinct, "query", precision=precision, batch_size=batch_size))

        queries = np.stack(distinct_once(embed, texts))
        scores = np.empty(documents.shape, dtype=np.float32)
        for start in range(0, len(texts), _TEXTS):
            rows = slice(start, start + _TEXTS)
            scores[rows] = np.einsum("td,tkd->tk", queries[rows], self.documents[documents[rows]])
        return scores

    @classmethod
    def reranker(cls, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
        model = load_tower(tower)

        def embed(texts: list[str], role: Role) -> list[np.ndarray]:
            return list(check_finite(encode(model, texts, role, precision=precision, batch_size=batch_size))[:, None])

        def compare(query: np.ndarray, vectors: list[np.ndarray]) -> np.ndarray:
            return np.asarray(np.concatenate(vectors).astype(np.float32) @ query[0])

        return VectorReranker(scratch, model.get_embedding_dimension() or 0, embed, compare)
