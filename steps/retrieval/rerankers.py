"""Teachers that put a query's candidates into a better order: cross encoders, late interaction, dual encoders."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.encoders.precision import Precision
from steps.encoders.towers import encode, load_tower
from steps.retrieval.late_interaction import PIECE, TokenVectors, load_late_interaction, max_similarities, token_vectors
from steps.retrieval.rankers import load_ranker, pair_scores

Read = Callable[[np.ndarray], Sequence[str]]
"""Texts of documents, of ascending rows of the corpus."""
KINDS = ("cross_encoder", "late_interaction", "dual_encoder", "llm_dual_encoder")


class Reranker(Protocol):
    """What scores the candidates of queries."""

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read: Read) -> list[np.ndarray]:
        """Score of each query with each of its candidates, rows of the corpus: float32 `(candidates,)` each."""


def open_reranker(teach: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
    """The re-ranker that the teacher in `teach` is; it may keep what it made of documents in the folder `scratch`.

    UserError for a kind that is behind an API.
    """
    kind = read_json(teach / "report.json").get("kind")
    if kind == "cross_encoder":
        return PairReranker(teach / "tower", precision, batch_size)
    if kind == "late_interaction":
        return LateReranker(teach / "tower", scratch, precision, batch_size)
    if kind in KINDS:
        return DenseReranker(teach / "tower", scratch, precision, batch_size)
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


class Documents:
    """Vectors of documents, which `embed` reads once each; they are kept on disk."""

    def __init__(self, scratch: Path, dim: int, embed: Callable[[list[str]], list[np.ndarray]]) -> None:
        """`embed` gives float `(vectors, dim)` of each text."""
        self.vectors, self.embed = TokenVectors(scratch, dim), embed
        self.places: dict[int, int] = {}

    def of(self, candidates: Sequence[np.ndarray], read: Read) -> Iterator[list[np.ndarray]]:
        """Vectors of each query's candidates, rows of the corpus; those of one query at a time are in memory."""
        rows = np.unique(np.concatenate(candidates))
        unread = np.array([row for row in rows.tolist() if row not in self.places], dtype=np.int64)
        texts = list(read(unread)) if len(unread) else []
        for start in range(0, len(texts), PIECE):
            self.vectors.append(self.embed(texts[start : start + PIECE]))
        self.places |= {row: len(self.places) + at for at, row in enumerate(unread.tolist())}
        for own in candidates:
            yield [self.vectors[self.places[row]] for row in own.tolist()]


class LateReranker:
    """A late interaction model, which reads each document once."""

    def __init__(self, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> None:
        model = load_late_interaction(tower)
        self.embed = partial(token_vectors, model, precision=precision, batch_size=batch_size)
        self.documents = Documents(scratch, model.get_embedding_dimension() or 0, partial(self.embed, role="document"))

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read: Read) -> list[np.ndarray]:
        """MaxSim."""
        held = self.documents.of(candidates, read)
        asked = self.embed(queries, role="query")
        return [_finite(max_similarities(query, own)) for query, own in zip(asked, held, strict=True)]


class DenseReranker:
    """A dual encoder beside the index's own, which reads each document once."""

    def __init__(self, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> None:
        model = load_tower(tower)
        self.embed = partial(encode, model, precision=precision, batch_size=batch_size)
        self.documents = Documents(scratch, model.get_embedding_dimension() or 0, self._read)

    def _read(self, texts: list[str]) -> list[np.ndarray]:
        return list(_finite(self.embed(texts, role="document"))[:, None])

    def scores(self, queries: list[str], candidates: Sequence[np.ndarray], read: Read) -> list[np.ndarray]:
        """Inner products."""
        held = self.documents.of(candidates, read)
        asked = self.embed(queries, role="query")
        return [_finite(np.concatenate(own).astype(np.float32) @ query) for query, own in zip(asked, held, strict=True)]
