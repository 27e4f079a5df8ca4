"""A cross encoder's scores of pairs of a text and a document, and its embeddings of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steps.core.vector_store import Texts
from steps.encoders.cut_texts import Cut, cut_pairs
from steps.retrieval.dual_pooling import is_dual_pooled
from steps.retrieval.rankers import Pair, load_ranker, pair_embeddings, pair_layer_scores, pair_scores
from steps.score.kinds.base import Scorer
from steps.score.params import ScoreParams
from steps.score.text_file import TextFile


class CrossEncoderScorer(Scorer):
    """A ranker, and the documents' texts on disk."""

    kind = "cross_encoder"
    layered = True

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, params: ScoreParams) -> None:
        """`fingerprint` is not needed; the texts lie in the file `scratch` while they are read."""
        self.params, self.ranker = params, load_ranker(teach / "tower")
        self.embeds = "pooled" if is_dual_pooled(self.ranker) else "joint"
        self.documents = TextFile(scratch, documents)

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Logit of each text with each of its documents, cut to what the ranker reads: float32 `(texts, k)`."""
        pairs, knobs = self._pairs(texts, documents), self.params
        found = pair_scores(self.ranker, pairs, precision=knobs.precision, batch_size=knobs.batch_size)
        return found.reshape(documents.shape)

    def cut(self, pairs: Sequence[Pair]) -> Cut | None:
        """Of the pairs, which it reads at once."""
        return cut_pairs(self.ranker, pairs)

    def pair_embeddings(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """With dual pooling the text's embedding given each document, else the embedding of both: `(texts, k, dim)`."""
        pairs, knobs = self._pairs(texts, documents), self.params
        found = pair_embeddings(self.ranker, pairs, precision=knobs.precision, batch_size=knobs.batch_size)
        return found.reshape(*documents.shape, -1)

    def layer_scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """What its head, or its pooling, makes of each layer's states: float32 `(texts, k, layers)`."""
        pairs, knobs = self._pairs(texts, documents), self.params
        found = pair_layer_scores(self.ranker, pairs, precision=knobs.precision, batch_size=knobs.batch_size)
        return found.reshape(*documents.shape, -1)

    def _pairs(self, texts: list[str], documents: np.ndarray) -> list[Pair]:
        """Each text with the text of each of its documents."""
        read = self.documents.read(np.unique(documents))
        return [(text, read[row]) for text, rows in zip(texts, documents.tolist(), strict=True) for row in rows]
