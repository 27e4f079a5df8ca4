"""The schema of bench/teachers.yaml: tables of teachers, and what of params.yaml each row changes."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from pipeline.recipe import overlay
from steps.core.params import Name, Strict, read_mapping, validated

UNTRAINED = "zero_shot"  # the row that all are compared with
Section = dict[str, Any]


class Row(Strict):
    """Sections of params.yaml laid over the table's, and rows besides `zero_shot` that this one is compared with."""

    description: str = Field(min_length=1)
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
    """Teachers of one data source: a recipe, which may read DATA, or the embedded demo; `seeds` replaces the file's."""

    description: str = Field(min_length=1)
    recipe: str = ""
    common: Common = Common()
    seeds: list[int] | None = Field(default=None, min_length=1)
    rows: dict[Name, Row] = Field(min_length=1)

    @model_validator(mode="after")
    def _rows_are_there(self) -> Self:
        if UNTRAINED not in self.rows:
            raise ValueError(f"rows has no {UNTRAINED}, with which all are compared; describe it")
        for name, row in self.rows.items():
            if unknown := [other for other in row.against if other not in self.rows or other == name]:
                raise ValueError(f"rows.{name}.against names {unknown}; name other rows of the table: {[*self.rows]}")
        return self

    def overlay_of(self, name: str) -> dict[str, Section]:
        """What a row and `common` lay over the recipe's params, by section."""
        row = self.rows[name].model_dump(exclude={"description", "against"})
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
