"""The engine of `mine.engine`, ready for expressions; the one that needs no extra is DuckDB inside this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import TransientError, UserError
from steps.core.progress import progress
from steps.mine.engine import CHUNK_ROWS, Convert, Engine
from steps.mine.params import MineParams


class DuckEngine(Engine):
    """DuckDB inside this process, within a memory limit, spilling to disk."""

    def scan(self, path: Path) -> ir.Table:
        return self.connection.read_parquet(str(path), hive_partitioning=False)  # the project may lie in run=5/

    def keep(self, expression: ir.Table) -> ir.Table:
        path = self._next_path()
        columns = ", ".join(
            f'CAST("{name}" AS BIGINT) AS "{name}"' if kind.is_int64() else f'"{name}"'
            for name, kind in expression.schema().items()
        )  # DuckDB adds whole numbers up to 128 bits, which Parquet would hold as floating point
        query = ibis.to_sql(expression, dialect="duckdb")
        quoted = str(path).replace("'", "''")
        self.connection.raw_sql(f"COPY (SELECT {columns} FROM ({query})) TO '{quoted}' (FORMAT parquet)")
        return self.scan(path)

    def batches(self, expression: ir.Table) -> Iterator[pa.RecordBatch]:
        yield from expression.to_pyarrow_batches(chunk_size=CHUNK_ROWS)

    def map_batches(self, expression: ir.Table, convert: Convert, schema: pa.Schema, label: str) -> ir.Table:
        path = self._next_path()
        with pq.ParquetWriter(path, schema) as writer:
            for batch in progress(self.batches(expression), None, label):
                writer.write_table(convert(batch))
        return self.scan(path)


@contextmanager
def open_engine(params: MineParams, folder: Path) -> Iterator[Engine]:
    """Yield the engine of `mine.engine`; what it keeps and spills lies below `folder`, which is left empty.

    UserError where DuckDB's memory limit is too low, TransientError where the disk is full.
    """
    with TemporaryDirectory(prefix=".scratch.", dir=folder) as scratch:
        if params.engine == "spark":
            from steps.mine.spark_engine import open_spark  # pyspark is an extra

            with open_spark(params, Path(scratch)) as spark:
                yield spark
            return
        connection = ibis.duckdb.connect(
            ":memory:",
            memory_limit=params.memory_limit,
            temp_directory=f"{scratch}/spill",
            preserve_insertion_order=False,  # results are sorted at the end; keeping order in between costs memory
        )
        try:
            yield DuckEngine(connection, Path(scratch))
        except duckdb.OutOfMemoryException as error:
            if "max_temp_directory_size" in str(error):  # by default what is free on the disk
                full = f"full disk: {scratch} has no room to spill to"
                raise TransientError(f"{full}; free some space, then run again") from None
            raise UserError(f"mine: {params.memory_limit} of memory are too little; raise mine.memory_limit") from None
        finally:
            connection.disconnect()
