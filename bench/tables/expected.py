"""The schema of bench/expected.yaml: presets, the tables, their students, and what is expected of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from bench.recorded_code import RecordEntry
from slimtower.common.errors import UserError
from slimtower.common.settings import Strict, read_mapping, validated
from steps.core.tables import Part
from steps.distill.params import Repeats, StudentName, StudentParams

EXPECTED = Path("bench/expected.yaml")
TEACHER = ("teacher_before", "teacher_after")  # of a row whose teacher trained along: `<row>/teacher_after` in a claim
Mixture = dict[Part, Repeats]
Paper = dict[str, float | str]


class Row(Strict):
    """A student, what it is trained on, and how much of the teacher it is expected to keep.

    `student`: parameters laid over the table's `common`, each in place of the one of its name there, or a name in the
    run's own distill.student; null = not settled yet. `subset`: layers of the paper's teacher. With `dims` one training
    is evaluated at several dimensions, and `expected` names a value for each; null = measured for the first time.
    `minimum` is a promise instead.
    """

    description: str = Field(min_length=1)
    student: dict[str, Any] | str | None = Field(default_factory=dict)
    subset: list[int] = Field(default_factory=list)
    mixture: Mixture | None = None
    dims: list[int] = Field(default_factory=list)
    expected: float | dict[int, float | None] | None = None
    minimum: float | None = None
    tolerance: float | None = Field(default=None, ge=0)
    paper: Paper = Field(default_factory=dict)

    @model_validator(mode="after")
    def _expected_names_dims(self) -> "Row":
        if isinstance(self.expected, dict) and set(self.expected) != set(self.dims):
            raise ValueError(f"expected names {sorted(self.expected)}, dims {sorted(self.dims)}; give both alike")
        if isinstance(self.expected, float) and self.dims:
            raise ValueError("expected is one value, but there are dims; give one for each of them")
        return self


class Claim(Strict):
    """What a paper finds, on queries of `split`: the first row is better than the second, or, by `says`, no worse.

    `p`: below it a difference is no chance. `differs`: what was found when ours was not.
    """

    order: list[str] = Field(min_length=2, max_length=2)
    says: Literal["better", "no worse"] = "better"
    p: float = Field(default=0.05, gt=0, lt=1)
    split: Literal["dev", "test"] = "test"
    paper: str = Field(min_length=1)
    differs: str = ""

    def explained(self) -> dict[str, str | float]:
        """What is not as it is in most claims, and `differs`, where there is something to say."""
        fields = {"says": self.says, "limit": self.p, "differs": self.differs}
        defaults = {"says": "better", "limit": 0.05, "differs": ""}
        return {name: value for name, value in fields.items() if value != defaults[name]}


class Table(Strict):
    """Rows that are compared with one another.

    An epoch of a row draws from each part the share that its `mixture` says, or the table's, of `texts` texts,
    whatever the part's size; without `texts` it repeats them as the run's own distill.repeats says. `validation_texts`
    replaces the run's, `seeds` the file's. `worst_within`: how far the worst data set may lie below the mean; `seconds`
    limits training. `run`: folder of the pipeline's run that it is measured on, and `sets` its data sets, where others
    would be another table.
    """

    description: str = Field(min_length=1)
    run: str = "runs/scifact_medquad"
    sets: list[str] = Field(default_factory=list)
    common: dict[str, Any] = Field(default_factory=dict)
    mixture: Mixture | None = None
    texts: int | None = Field(default=None, ge=1)
    validation_texts: int | None = Field(default=None, ge=1)
    seeds: list[int] | None = Field(default=None, min_length=1)
    tolerance: float = Field(ge=0)
    worst_within: float | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, gt=0)
    rows: dict[str, Row] = Field(min_length=1)
    claims: list[Claim] = Field(default_factory=list)

    @model_validator(mode="after")
    def _texts_are_of_a_mixture(self) -> "Table":
        mixed = [name for name, row in self.rows.items() if row.mixture or self.mixture]
        if self.texts is None and mixed:
            raise ValueError(f"{mixed} have a mixture, which is shares of the table's `texts`; give these too")
        if self.texts is not None and len(mixed) < len(self.rows):
            raise ValueError(f"{sorted(set(self.rows) - set(mixed))} have no mixture that says which `texts`; give one")
        return self

    @model_validator(mode="after")
    def _claims_name_rows(self) -> "Table":
        rows = {entry.name: entry.row.student for entry in self.entries()}
        joint = {name for name, student in rows.items() if isinstance(student, dict) and _trains_a_teacher(student)}
        names = set(rows) | {f"{name}/{moment}" for name in joint for moment in TEACHER}
        unknown = {name for claim in self.claims for name in claim.order} - names
        if unknown:
            raise ValueError(f"claims name {sorted(unknown)}, which are no rows")
        return self

    def entries(self) -> Iterator["Entry"]:
        """A line of the finished table for each row, or for each of its dims."""
        for name, row in self.rows.items():
            for dim in row.dims or [0]:
                yield Entry(f"{name}@{dim}" if dim else name, name, row, dim)


def _trains_a_teacher(student: dict[str, Any]) -> bool:
    return any(phase.get("targets") == "joint" for phase in (student, *student.get("then", [])))


@dataclass(frozen=True)
class Entry:
    """A line of a finished table; `dim` 0 = the whole embedding."""

    name: str
    row_name: str
    row: Row
    dim: int

    def expected(self) -> float | None:
        """The ratio to the teacher that is expected; None before the first measurement."""
        return self.row.expected.get(self.dim) if isinstance(self.row.expected, dict) else self.row.expected


class Peer(Strict):
    """An encoder that others published: its share of its own teacher's nDCG@10, mean over `sets`, and one query's time.

    `corpus_text`: whether the texts of the corpora that are searched were trained on.
    """

    system: str = Field(min_length=1)
    sets: str = Field(min_length=1)
    retention: float = Field(gt=0)
    p50_ms: float | None = None
    corpus_text: bool
    source: str = Field(min_length=1)


class Ours(Strict):
    """Students of a recorded run, bench/results/<results>.json, beside the peers; left out while it is not recorded."""

    results: str = Field(min_length=1)
    sets: str = Field(min_length=1)
    corpus_text: bool


class Beside(Strict):
    """What stands beside each other in the table of peers."""

    ours: list[Ours] = Field(default_factory=list)
    peers: list[Peer] = Field(default_factory=list)


class Collapse(Strict):
    """Effective ranks of cross encoders' embeddings of pairs, by run and teacher (bench/collapse.py)."""

    tolerance: float = Field(default=0.5, ge=0)
    effective_rank: dict[str, dict[str, float]] = Field(default_factory=dict)


class Expected(Strict):
    """The whole file.

    `presets`: the papers' recipes by name, which the tables measure; `beside`: published peers; `records`: what each
    file of bench/results measures, by patterns of its name.
    """

    seeds: list[int] = Field(min_length=1)
    records: dict[str, RecordEntry] = Field(default_factory=dict)
    beside: Beside = Beside()
    collapse: Collapse = Collapse()
    presets: dict[StudentName, StudentParams] = Field(default_factory=dict)
    tables: dict[str, Table]


def read_expected(path: Path) -> Expected:
    """Read and check the file; UserError names what is wrong."""
    raw = read_mapping(path)
    raw.pop("anchors", None)  # a place for what several tables share
    return validated(Expected, raw, str(path))


def parse_seeds(words: str, default: list[int]) -> list[int]:
    """The seeds of `--seeds 1,2,3`, the default without any; UserError for what are no numbers."""
    try:
        return [int(word) for word in words.split(",")] if words else default
    except ValueError:
        raise UserError(f"--seeds: {words!r} are no numbers; write 1,2,3") from None
