"""Teachers that put a query's candidates into a better order: cross encoders and late interaction models."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from steps.core.errors import UserError
from steps.core.files import read_json
from steps.core.precision import Precision
from steps.retrieval.late_interaction import PIECE, TokenVectors, load_late_interaction, max_similarities, token_vectors
from steps.retrieval.rankers import load_ranker, pair_scores

Read = Callable[[np.ndarray], Sequence[str]]
"""Texts of documents, of ascending rows of the corpus."""
KINDS = ("cross_encoder", "late_interaction")


class Reranker(Protocol):
    """What scores the candidates of queries."""

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read: Read) -> list[np.ndarray]:
        """Score of each query with each of its candidates, rows of the corpus: float32 `(candidates,)` each."""


def open_reranker(teach: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
    """The re-ranker that the teacher in `teach` is; it may keep what it made of documents in the folder `scratch`.

    UserError for a kind that reads no pairs.
    """
    kind = read_json(teach / "report.json").get("kind")
    if kind == "cross_encoder":
        return PairReranker(teach / "tower", precision, batch_size)
    if kind == "late_interaction":
        return LateReranker(teach / "tower", scratch, precision, batch_size)
    raise UserError(
        f"{teach}: a teacher of kind {kind!r} re-ranks nothing; name one of the kinds {', '.join(KINDS)} in"
        " evaluate.rerankers"
    )


def _finite(scores: np.ndarray) -> np.ndarray:
    """The scores; UserError where one is no number: what it ranks would have no order."""
    if not np.isfinite(scores).all():
        raise UserError(
            f"evaluate.rerankers: a query and a document have the score {scores[~np.isfinite(scores)][0]}; train that"
            " teacher again with a lower learning rate, or take it off the list"
        )
    return scores


class PairReranker:
    """A cross encoder, which reads every pair."""

    def __init__(self, tower: Path, precision: Precision, batch_size: int) -> None:
        self.ranker, self.precision, self.batch_size = load_ranker(tower), precision, batch_size

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read: Read) -> list[np.ndarray]:
        """Its logits."""
        rows = np.unique(np.concatenate(candidates))
        texts = dict(zip(rows.tolist(), read(rows), strict=True))
        pairs = [(query, texts[row]) for query, own in zip(queries, candidates, strict=True) for row in own.tolist()]
        found = _finite(pair_scores(self.ranker, pairs, precision=self.precision, batch_size=self.batch_size))
        return np.split(found, np.cumsum([len(own) for own in candidates])[:-1])


class LateReranker:
    """A late interaction model, which reads each document once and keeps its token vectors on disk."""

    def __init__(self, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> None:
        self.model, self.precision, self.batch_size = load_late_interaction(tower), precision, batch_size
        self.vectors = TokenVectors(scratch, self.model.get_embedding_dimension() or 0)
        self.places: dict[int, int] = {}

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read: Read) -> list[np.ndarray]:
        """MaxSim."""
        rows = np.unique(np.concatenate(candidates))
        unread = np.array([row for row in rows.tolist() if row not in self.places], dtype=np.int64)
        texts = list(read(unread)) if len(unread) else []
        for start in range(0, len(texts), PIECE):
            piece = texts[start : start + PIECE]
            self.vectors.append(
                token_vectors(self.model, piece, "document", precision=self.precision, batch_size=self.batch_size)
            )
        self.places |= {row: len(self.places) + at for at, row in enumerate(unread.tolist())}
        asked = token_vectors(self.model, queries, "query", precision=self.precision, batch_size=self.batch_size)
        return [
            _finite(max_similarities(query, [self.vectors[self.places[row]] for row in own.tolist()]))
            for query, own in zip(asked, candidates, strict=True)
        ]
