"""The engine that evaluates mining expressions: DuckDB through Ibis, within a memory limit, spilling to disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from ibis.backends import BaseBackend

from steps.core.progress import progress

_CHUNK_ROWS = 50_000


class Engine:
    """An Ibis connection and a scratch folder; intermediate results live in Parquet files, not in memory."""

    def __init__(self, connection: BaseBackend, scratch: Path) -> None:
        self.connection, self.scratch = connection, scratch
        self._kept = 0

    def read(self, path: Path) -> ir.Table:
        """A Parquet file (or folder of files) as a table expression."""
        return self.connection.read_parquet(str(path))

    def keep(self, expression: ir.Table) -> ir.Table:
        """Evaluate an expression once; the result is read wherever it is used again."""
        path = self._next_path()
        expression.to_parquet(path)
        return self.read(path)

    def rows(self, expression: ir.Table) -> pa.Table:
        """Evaluate an expression into memory."""
        return expression.to_pyarrow()

    def number(self, expression: ir.IntegerScalar) -> int:
        """Evaluate an integer; a sum over no rows is 0."""
        return int(expression.fill_null(0).to_pyarrow().as_py())

    def batches(self, expression: ir.Table) -> Iterator[pa.RecordBatch]:
        """Evaluate an expression, some thousand rows at a time."""
        yield from expression.to_pyarrow_batches(chunk_size=_CHUNK_ROWS)

    def map_batches(
        self, expression: ir.Table, convert: Callable[[pa.RecordBatch], pa.Table], schema: pa.Schema, what: str
    ) -> ir.Table:
        """Pass an expression through a Python function, some thousand rows at a time."""
        path = self._next_path()
        with pq.ParquetWriter(path, schema) as writer:
            for batch in progress(self.batches(expression), None, what):
                writer.write_table(convert(batch))
        return self.read(path)

    def _next_path(self) -> Path:
        self._kept += 1
        return self.scratch / f"{self._kept:03d}.parquet"


@contextmanager
def open_engine(memory_limit: str, folder: Path) -> Iterator[Engine]:
    """Yield DuckDB limited to `memory_limit` ("2GB"); what does not fit spills below `folder`, which is left empty."""
    with TemporaryDirectory(prefix=".scratch.", dir=folder) as scratch:
        connection = ibis.duckdb.connect(
            ":memory:",
            memory_limit=memory_limit,
            temp_directory=str(Path(scratch) / "spill"),
            preserve_insertion_order=False,  # results are sorted at the end; keeping order in between costs memory
        )
        try:
            yield Engine(connection, Path(scratch))
        finally:
            connection.disconnect()
