"""A dual encoder's scores: inner products of its embeddings."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from steps.core.vector_store import Texts
from steps.encoders.cut_texts import Cut, cut_documents
from steps.encoders.precision import Precision
from steps.encoders.towers import encode, load_tower, route
from steps.encoders.vector_cache import embed_once
from steps.scorers.base import Reading, ReadTexts, Reranker, Scorer, check_finite
from steps.scorers.documents import CandidateVectors

_TEXTS = 256  # multiplied at once: a copy of their documents' vectors is made


class DualEncoderScorer(Scorer):
    """A tower, and the documents, which it embeds once."""

    kind = "dual_encoder"

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, reading: Reading) -> None:
        """`fingerprint` is the id of the tower's; the vectors lie in the file `scratch` while they are used."""
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
            precision=self.reading.precision,
            batch_size=self.reading.batch_size,
            shard_texts=self.reading.shard_texts,
            caption="embed documents",
        )
        vectors: np.ndarray = np.load(self.scratch, mmap_mode="r")
        return vectors

    def cut(self, pairs: Sequence[tuple[str, str]]) -> Cut | None:
        """Of the documents, each once."""
        return cut_documents(self.document_tower, sorted({document for _, document in pairs}))

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Inner product of each text's vector with those of its documents `(texts, k)`: float32 `(texts, k)`."""
        precision, batch_size, _ = self.reading
        queries = encode(self.query_tower, texts, "query", precision=precision, batch_size=batch_size)
        scores = np.empty(documents.shape, dtype=np.float32)
        for start in range(0, len(texts), _TEXTS):
            rows = slice(start, start + _TEXTS)
            scores[rows] = np.einsum("td,tkd->tk", queries[rows], self.documents[documents[rows]])
        return scores

    @classmethod
    def reranker(cls, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
        """A dual encoder beside the index's own, which reads each document once."""
        return DualEncoderReranker(tower, scratch, precision, batch_size)


class DualEncoderReranker:
    """A tower, and vectors of the candidates."""

    def __init__(self, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> None:
        model = load_tower(tower)
        self.embed = partial(encode, model, precision=precision, batch_size=batch_size)
        self.documents = CandidateVectors(scratch, model.get_embedding_dimension() or 0, self._embed_documents)

    def _embed_documents(self, texts: list[str]) -> list[np.ndarray]:
        return list(check_finite(self.embed(texts, role="document"))[:, None])

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read_texts: ReadTexts) -> list[np.ndarray]:
        """Inner products."""
        documents = self.documents.of(candidates, read_texts)
        query_vectors = self.embed(queries, role="query")
        return [
            check_finite(np.concatenate(vectors).astype(np.float32) @ query)
            for query, vectors in zip(query_vectors, documents, strict=True)
        ]
