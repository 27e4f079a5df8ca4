"""What a teacher that scores can do: score stored texts, re-rank candidates, train along with a student."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from sentence_transformers.base.model import BaseModel
from torch import Tensor

from slimtower.common.errors import UserError
from steps.core.vector_store import Texts
from steps.encoders.cut_texts import Cut
from steps.encoders.precision import Precision
from steps.retrieval.late_interaction import PIECE, TokenVectors

ReadTexts = Callable[[np.ndarray], Sequence[str]]
"""Texts of documents, of ascending rows of the corpus."""


class Reading(NamedTuple):
    """How a scorer reads texts: in which precision, how many at once, how many a shard of what it keeps."""

    precision: Precision
    batch_size: int
    shard_texts: int


class Reranker(Protocol):
    """What scores the candidates of queries."""

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read_texts: ReadTexts) -> list[np.ndarray]:
        """Score of each query with each of its candidates, rows of the corpus: float32 `(candidates,)` each."""


class Network(Protocol):
    """A network that scores pairs of a text and a document, by its end and by each layer, and that can be trained."""

    kind: str  # that of the teacher
    candidates: Literal["batch", "own"]  # with which documents it best trains: all of the batch, or the text's own
    depth: int  # layers of its transformer

    @property
    def model(self) -> BaseModel:
        """All that trains, and is saved."""

    def scores(self, texts: list[str], documents: list[str], pairs: np.ndarray, layers: Sequence[int]) -> Tensor:
        """Scores of `pairs` `(2, p)`, positions: float32 `(p, 1 + len(layers))`, its own first, then layers'."""


class Scorer(ABC):
    """A teacher that says how well texts and documents match; a subclass is for teachers of its `kind`."""

    kind: ClassVar[str]
    embeds: Literal["pooled", "joint"] | None = None  # of a pair: its text, given the document, or both in one vector

    layered: ClassVar[bool] = False  # whether each of its layers scores as well

    @abstractmethod
    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, reading: Reading) -> None:
        """For the teacher in `teach`, whose tower has that fingerprint's id, and these documents.

        `scratch` is a file that it may write, and that is removed after it.
        """

    @abstractmethod
    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Score of each text with its documents, positions `(texts, k)`: float32 `(texts, k)`; higher is better."""

    def pair_embeddings(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Embedding of each text with its documents: float32 `(texts, k, dim)`; only of a teacher that has `embeds`."""
        raise NotImplementedError

    def layer_scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """Score by each layer, the first first (LEAD, Sec. 3.2): float32 `(texts, k, layers)`; only if `layered`."""
        raise NotImplementedError

    def check(self, *, pairs: bool, layers: bool) -> None:  # noqa: B027  # most give neither
        """UserError if it cannot give embeddings of `pairs`, or scores of `layers`, that are wanted."""

    def announce(self, texts: list[str]) -> None:  # noqa: B027  # most cost nothing
        """Say what it costs to score these texts, before any of them is; UserError where that is more than allowed."""

    def cut(self, pairs: Sequence[tuple[str, str]]) -> Cut | None:
        """How many of these texts with their documents it reads not to their end; None where that is not known."""
        return None

    def finish(self) -> None:  # noqa: B027  # most keep nothing
        """Remove what it keeps beside `scratch`, once all scores are written."""

    @classmethod
    def reranker(cls, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
        """The teacher as a re-ranker, which may keep vectors of documents in the folder `scratch`."""
        raise UserError(f"{tower}: a teacher of kind {cls.kind!r} re-ranks nothing; take it off evaluate.rerankers")

    @classmethod
    def network(cls, tower: Path, max_length: int, max_document_length: int) -> Network:
        """The teacher as a network that trains along with a student."""
        raise UserError(
            f"{tower}: a teacher of kind {cls.kind!r} does not train along (targets: joint); let the losses name a"
            " late_interaction or a cross_encoder, or none for the teacher of the index"
        )


def distinct_once(embed: Callable[[list[str]], Sequence[np.ndarray]], texts: list[str]) -> list[np.ndarray]:
    """What `embed` makes of each text, which may stand there several times, reading each once."""
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    vectors = embed([*distinct])
    return [vectors[distinct[text]] for text in texts]


def check_finite(scores: np.ndarray) -> np.ndarray:
    """The scores; UserError where one is no number: what it ranks would have no order."""
    if not np.isfinite(scores).all():
        raise UserError(
            f"evaluate.rerankers: a query and a document have the score {scores[~np.isfinite(scores)][0]}; train that"
            " teacher again with a lower learning rate, or take it off the list"
        )
    return scores


class VectorReranker:
    """Compares vectors of queries with those of candidates, each of which is read once; they are kept on disk."""

    def __init__(
        self,
        scratch: Path,
        dim: int,
        embed: Callable[..., list[np.ndarray]],
        compare: Callable[[np.ndarray, list[np.ndarray]], np.ndarray],
    ) -> None:
        """`embed(texts, role=)` gives float `(vectors, dim)` of each text; `compare` a score for each of the second."""
        self.vectors, self.embed, self.compare = TokenVectors(scratch, dim), embed, compare
        self.positions: dict[int, int] = {}

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read_texts: ReadTexts) -> list[np.ndarray]:
        """As of `Reranker`."""
        rows = np.unique(np.concatenate(candidates))
        unread = np.array([row for row in rows.tolist() if row not in self.positions], dtype=np.int64)
        query_vectors = self.embed(queries, role="query")
        texts = list(read_texts(unread)) if len(unread) else []
        for start in range(0, len(texts), PIECE):
            self.vectors.append(self.embed(texts[start : start + PIECE], role="document"))
        self.positions |= {row: len(self.positions) + number for number, row in enumerate(unread.tolist())}
        return [
            check_finite(self.compare(query, [self.vectors[self.positions[row]] for row in document_rows.tolist()]))
            for query, document_rows in zip(query_vectors, candidates, strict=True)
        ]
