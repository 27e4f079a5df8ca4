"""A dual encoder's scores: inner products of its embeddings."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from steps.core.vector_store import Texts
from steps.encoders.cut_texts import Cut, cut_documents
from steps.encoders.towers import encode, load_tower, route
from steps.encoders.vector_cache import embed_once
from steps.score.kinds.base import Scorer
from steps.score.params import ScoreParams

_TEXTS = 256  # multiplied at once: a copy of their documents' vectors is made


class DualEncoderScorer(Scorer):
    """A tower, and the documents, which it embeds once."""

    kind = "dual_encoder"

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, params: ScoreParams) -> None:
        """`fingerprint` is the id of the tower's; the vectors lie in the file `scratch` while they are used."""
        self.params, self.fingerprint, self.texts, self.scratch = params, fingerprint, documents, scratch
        tower = load_tower(teach / "tower")  # once, as both roles of a server know what either has been answered
        self.reader, self.queries = route(tower, "document"), route(tower, "query")

    @cached_property
    def documents(self) -> np.ndarray:
        """The vectors, made once a text is to be scored: of a run that was finished before none is."""
        embed_once(
            self.reader,
            self.fingerprint,
            "document",
            self.texts,
            self.scratch,
            dtype="float32",
            precision=self.params.precision,
            batch_size=self.params.batch_size,
            shard_texts=self.params.shard_texts,
            what="embed documents",
        )
        vectors: np.ndarray = np.load(self.scratch, mmap_mode="r")
        return vectors

    def cut(self, pairs: Sequence[tuple[str, str]]) -> Cut | None:
        """Of the documents, each once."""
        return cut_documents(self.reader, sorted({document for _, document in pairs}))

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Inner product of each text's vector with those of its documents `(texts, k)`: float32 `(texts, k)`."""
        asked = encode(self.queries, texts, "query", precision=self.params.precision, batch_size=self.params.batch_size)
        found = np.empty(documents.shape, dtype=np.float32)
        for start in range(0, len(texts), _TEXTS):
            rows = slice(start, start + _TEXTS)
            found[rows] = np.einsum("td,tkd->tk", asked[rows], self.documents[documents[rows]])
        return found
