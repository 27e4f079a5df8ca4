"""Rows of tables, by their columns in the order of the schema."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from steps.core.tables import SCHEMAS, table_from_rows, write_table


def row(table: str, *values: Any) -> dict[str, Any]:
    """A row of a table."""
    return dict(zip(SCHEMAS[table].names, values, strict=True))


def write_rows(folder: Path, table: str, rows: Iterable[tuple[Any, ...]] = ()) -> None:
    """Write a table of these rows."""
    write_table(folder, table, table_from_rows(table, [row(table, *values) for values in rows]))
