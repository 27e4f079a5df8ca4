"""The schema of bench/teachers.yaml: tables of teachers, and what of params.yaml each row changes."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from bench.tables.expected import Claim
from pipeline.recipe import overlay
from slimtower.common.settings import Strict, read_mapping, validated
from steps.core.params import Name

UNTRAINED = "zero_shot"  # the row that all are compared with
Section = dict[str, Any]


class Row(Strict):
    """Sections of params.yaml laid over the table's, and rows besides `zero_shot` that this one is compared with.

    `expected`: nDCG@10 on test; null = measured for the first time.
    """

    description: str = Field(min_length=1)
    expected: float | None = None
    candidates: Section = Field(default_factory=dict)
    mine: Section = Field(default_factory=dict)
    rank: Section = Field(default_factory=dict)
    teach: Section = Field(default_factory=dict)
    against: list[str] = Field(default_factory=list)


class Common(Strict):
    """Sections of params.yaml laid over the recipe's, of every row; `ingest` is the same for all that are compared."""

    ingest: Section = Field(default_factory=dict)
    candidates: Section = Field(default_factory=dict)
    mine: Section = Field(default_factory=dict)
    rank: Section = Field(default_factory=dict)
    teach: Section = Field(default_factory=dict)


class Table(Strict):
    """Teachers of one data source: a recipe, which may read DATA, or the embedded demo; `seeds` replaces the file's.

    `expected`, by row, for tables that share their rows. `claims` are of rows that are compared, and judged as those of
    bench/expected.yaml.
    """

    description: str = Field(min_length=1)
    recipe: str = ""
    common: Common = Common()
    seeds: list[int] | None = Field(default=None, min_length=1)
    tolerance: float = Field(default=0.01, ge=0)
    rows: dict[Name, Row] = Field(min_length=1)
    expected: dict[Name, float] = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)

    @model_validator(mode="after")
    def _rows_are_there(self) -> Self:
        if UNTRAINED not in self.rows:
            raise ValueError(f"rows has no {UNTRAINED}, with which all are compared; describe it")
        for name, row in self.rows.items():
            if unknown := [baseline for baseline in row.against if baseline not in self.rows or baseline == name]:
                raise ValueError(f"rows.{name}.against names {unknown}; name other rows of the table: {[*self.rows]}")
        if unknown := [name for name in self.expected if name not in self.rows]:
            raise ValueError(f"expected names {unknown}; name rows of the table: {[*self.rows]}")
        for claim in self.claims:
            first, second = claim.order
            compared = [second in self._baselines(first), first in self._baselines(second)]
            if not any(compared):
                raise ValueError(
                    f"claims: {first} is not compared with {second}; name {second} in rows.{first}.against"
                )
        return self

    def _baselines(self, name: str) -> list[str]:
        """What a row is compared with; nothing for a name that is no row."""
        return [UNTRAINED, *self.rows[name].against] if name in self.rows and name != UNTRAINED else []

    def expected_of(self, name: str) -> float | None:
        """nDCG@10 on test that a row is expected to have; None where it was never measured."""
        return self.expected.get(name, self.rows[name].expected)

    def overlay_of(self, name: str) -> dict[str, Section]:
        """What a row and `common` lay over the recipe's params, by section."""
        row = self.rows[name].model_dump(exclude={"description", "expected", "against"})
        return {key: section for key, section in overlay(self.common.model_dump(), row).items() if section}


class Tables(Strict):
    """The whole file."""

    seeds: list[int] = Field(min_length=1)
    tables: dict[Name, Table] = Field(min_length=1)


def read_tables(path: Path) -> Tables:
    """Read and check the file; UserError names what is wrong."""
    raw = read_mapping(path)
    raw.pop("anchors", None)  # a place for what several rows share
    return validated(Tables, raw, str(path))
