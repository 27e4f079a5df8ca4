"""A late interaction model's scores: MaxSim of a text's tokens and each document's."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from slimtower.common.files import cache_root
from steps.core.code import code_digest
from steps.core.turns import forget, hold
from steps.core.vector_store import Texts
from steps.core.versions import library_versions
from steps.encoders.cut_texts import Cut, cut_of_tokens
from steps.encoders.precision import resolve_precision
from steps.retrieval.late_interaction import (
    TokenVectors,
    digest_of_texts,
    giving_layers,
    layer_similarities,
    load_late_interaction,
    max_similarities,
    token_vectors,
)
from steps.score.kinds.base import Scorer
from steps.score.params import ScoreParams
from steps.score.text_file import TextFile

_TEXTS, _DOCUMENTS = 256, 32  # whose states of layers are in memory at once: 100 MB at 100 tokens of 6 times 384


class LateInteractionScorer(Scorer):
    """A model, and the documents' token vectors on disk, float16, which it reads once."""

    kind = "late_interaction"
    layered = True

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, params: ScoreParams) -> None:
        """`fingerprint` is the id of the tower's.

        Vectors lie below SLIMTOWER_CACHE until `finish`, so that a killed run goes on; while another run has them, this
        one waits. `scratch` is for texts that layers read.
        """
        self.params, self.texts, self.model = params, documents, load_late_interaction(teach / "tower")
        self.scratch = scratch
        code = code_digest("steps.retrieval.late_interaction")
        settings = (fingerprint, resolve_precision(params.precision), code, *library_versions())
        self.folder = cache_root() / "token_vectors" / digest_of_texts(settings, documents)
        hold(self.folder, "score: waits for another run with this teacher and these documents")  # it may make ours too
        self.documents = TokenVectors(self.folder, self.model.get_embedding_dimension() or 0)

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """MaxSim of each text with each of its documents, `(texts, k)` positions: float32 `(texts, k)`."""
        asked = token_vectors(
            self.model, texts, "query", precision=self.params.precision, batch_size=self.params.batch_size
        )
        self._read_documents()
        found = np.empty(documents.shape, dtype=np.float32)
        for row, query in enumerate(asked):
            found[row] = max_similarities(query, [self.documents[place] for place in documents[row].tolist()])
        return found

    def cut(self, pairs: Sequence[tuple[str, str]]) -> Cut | None:
        """Of the documents, each once."""
        return cut_of_tokens(self.model, sorted({document for _, document in pairs}))

    def layer_scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """MaxSim of all layers' states of tokens: float32 `(texts, k, layers)`.

        The states of a document are too many to be kept: it is read again for each few hundred texts that ask for it.
        """
        read = partial(token_vectors, self.model, precision=self.params.precision, batch_size=self.params.batch_size)
        with giving_layers(self.model) as layers:
            found = np.empty((*documents.shape, layers), dtype=np.float32)
            for start in range(0, len(texts), _TEXTS):
                own = documents[start : start + _TEXTS]
                asked = read(texts[start : start + _TEXTS], "query")
                rows = np.unique(own)
                for first in range(0, len(rows), _DOCUMENTS):
                    some = rows[first : first + _DOCUMENTS]
                    held = read([*self.documents_read.read(some).values()], "document")
                    for text, place in zip(*np.nonzero(np.isin(own, some)), strict=True):
                        document = held[int(np.searchsorted(some, own[text, place]))]
                        found[start + text, place] = layer_similarities(asked[text], document, layers)
        return found

    @cached_property
    def documents_read(self) -> TextFile:
        """The documents' texts, for who needs them in another order."""
        return TextFile(self.scratch, self.texts)

    def _read_documents(self) -> None:
        """Only once a text is to be scored: of a run that was finished before none is."""
        self.documents.fill(
            self.model,
            self.texts,
            precision=self.params.precision,
            batch_size=self.params.batch_size,
            shard_texts=self.params.shard_texts,
            what="embed documents' tokens",
        )

    def finish(self) -> None:
        """Remove the vectors: they are many times larger than the texts."""
        forget(self.folder)
