"""What a figure of the report is, and what it is given: a tower on the judged test queries of one data set."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from steps.core.judged import JudgedSet, other_hits
from steps.evaluate.formatting import Block, Cell, Table
from steps.evaluate.systems import Student, Teacher

NEIGHBOURS = 10  # documents and queries that are near
Part = Literal["unjudged", "tests", "queries", "distance", "speed"]
Measured = Mapping[str, Mapping[str, Any]]  # model -> data set -> what `Figure.measure` returned


@dataclass(frozen=True)
class EvaluatedTower:
    """A tower, the teacher or a student, on the judged test queries of one data set."""

    tower: Teacher | Student
    judged: JudgedSet
    teacher_vectors: np.ndarray
    """The teacher's embeddings of the queries, `(queries, dim)`."""
    seed: int

    @cached_property
    def vectors(self) -> np.ndarray:
        """The tower's embeddings of the queries as it serves, `(queries, dim)`."""
        return self.tower.encode(self.judged.texts) if isinstance(self.tower, Student) else self.teacher_vectors

    @cached_property
    def hits(self) -> list[list[str]]:
        """Ids of the NEIGHBOURS documents that are nearest to each query by the tower."""
        return self.nearest(self.vectors)

    @cached_property
    def teacher_hits(self) -> list[list[str]]:
        """The same by the teacher."""
        return self.nearest(self.teacher_vectors)

    def nearest(self, vectors: np.ndarray) -> list[list[str]]:
        """Ids of the NEIGHBOURS documents that are nearest to each of these embeddings of the queries."""
        threads = torch.get_num_threads()

        def search(k: int) -> tuple[np.ndarray, list[list[str]]]:
            return self.tower.release.search(self.judged.dataset, vectors, k, "flat", threads)

        return other_hits(self.judged, self.judged.query_ids, search, NEIGHBOURS)[1]


@dataclass(frozen=True)
class RenderContext:
    """What a figure may read to be shown: metrics.json, and what was measured for it."""

    metrics: Mapping[str, Any]
    measured: Measured
    fused: bool
    """Whether the release of a student adds BM25."""


class Figure(ABC):
    """One figure: its module's name is its key in metrics.json and, of an analysis, in `evaluate.analyses`."""

    title: ClassVar[str]
    part: ClassVar[Part]
    """Part of the page in which it stands."""
    position: ClassVar[int] = 100
    """Figures of a part stand in this order, then by name."""
    analysis: ClassVar[bool] = False
    """Whether it explains and decides nothing: then it is measured only where `evaluate.analyses` names it."""
    in_short: ClassVar[bool] = False
    """Whether report.md and the terminal show it as well."""

    @classmethod
    def key(cls) -> str:
        """Its key in metrics.json."""
        return cls.__module__.rpartition(".")[2]

    def measure(self, evaluated: EvaluatedTower) -> Any:
        """What JSON can hold of one tower on one data set, kept until code, tower or queries change; None: nothing.

        Without it the figure shows what the evaluation itself put under its key.
        """
        return None

    def merge(self, measured: Measured, values: Mapping[str, Mapping[str, np.ndarray]], seed: int) -> dict[str, Any]:
        """Its value in metrics.json, by default `[data set][model]`.

        `values[system][data set]`: nDCG@10 of the test queries, of fused systems as well.
        """
        return by_data_set(measured)

    @abstractmethod
    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterable[Block]:
        """Paragraphs, tables and drawings below its title; `value` is what metrics.json has of it, never empty."""


def by_data_set(by_model: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`[data set][model]` of `[model][data set]`."""
    named: dict[str, dict[str, Any]] = {}
    for model, by_set in by_model.items():
        for dataset, value in by_set.items():
            named.setdefault(dataset, {})[model] = value
    return named


def model_table(
    heads: Sequence[str], value: Mapping[str, Mapping[str, Any]], row: Callable[[Any], Sequence[str | Cell]]
) -> Table:
    """A row for each data set and model of a figure's value `[data set][model]`: both names, and `row` of its value."""
    rows = [[dataset, model, *row(cell)] for dataset, models in sorted(value.items()) for model, cell in models.items()]
    return Table(["data set", *heads], rows)


def overlaps(expected: Sequence[Sequence[str]], hits: Sequence[Sequence[str]]) -> np.ndarray:
    """Share of each row of `expected` that is in the same row of `hits`, 1 of an empty row: float64 `(n,)`."""
    return np.array([len(set(a) & set(b)) / len(a) if a else 1.0 for a, b in zip(expected, hits, strict=True)])
