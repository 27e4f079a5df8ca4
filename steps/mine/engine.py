"""What evaluates mining expressions: an Ibis connection, and a folder for what is used more than once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from ibis.backends import BaseBackend

from slimtower.common.files import staged_file
from steps.core.progress import progress
from steps.core.tables import SCHEMAS

CHUNK_ROWS = 50_000

Convert = Callable[[pa.RecordBatch], pa.Table]


class Engine(ABC):
    """An Ibis connection and a scratch folder; intermediate results live in Parquet files, not in memory."""

    def __init__(self, connection: BaseBackend, scratch: Path) -> None:
        self.connection, self.scratch = connection, scratch
        self._results = 0

    def scan(self, path: Path) -> ir.Table:
        """A Parquet file (or folder of files) as a table expression."""
        return self.connection.read_parquet(str(path))

    @abstractmethod
    def keep(self, expression: ir.Table) -> ir.Table:
        """Evaluate an expression once; the result is read wherever it is used again."""

    def rows(self, expression: ir.Table) -> pa.Table:
        """Evaluate an expression into memory."""
        return expression.to_pyarrow()

    def number(self, expression: ir.IntegerScalar) -> int:
        """Evaluate an integer; a sum over no rows is 0."""
        return int(expression.fill_null(0).to_pyarrow().as_py())

    def counts(self, table: ir.Table, name: str) -> dict[str, int]:
        """Rows of a table by the values of a column, in the order of these."""
        counted = table.group_by(name).aggregate(rows=lambda t: t.count())
        return dict(sorted((row[name], row["rows"]) for row in self.rows(counted).to_pylist()))

    def write(self, folder: Path, name: str, expression: ir.Table) -> None:
        """Write the named table sorted by all its columns, so that equal rows are equal bytes; never all in memory."""
        schema = SCHEMAS[name]
        ordered = expression.select(schema.names).order_by(schema.names)
        path = folder / f"{name}.parquet"
        with staged_file(path) as staging, pq.ParquetWriter(staging, schema, compression="zstd") as writer:
            for batch in progress(self.batches(ordered), None, f"writing {name}"):
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))

    @abstractmethod
    def batches(self, expression: ir.Table) -> Iterator[pa.RecordBatch]:
        """Evaluate an expression in its order, some thousand rows at a time."""

    @abstractmethod
    def map_batches(self, expression: ir.Table, convert: Convert, schema: pa.Schema, label: str) -> ir.Table:
        """Pass an expression through a Python function, some thousand rows at a time."""

    def _next_path(self) -> Path:
        self._results += 1
        return self.scratch / f"{self._results:03d}.parquet"


def numbered(table: ir.Table, group: str | Sequence[str], order: Any) -> ir.Table:
    """The table with `place`: 0, 1, ... in each group, in this order."""
    return table.mutate(place=ibis.row_number().over(ibis.window(group_by=group, order_by=order)))
