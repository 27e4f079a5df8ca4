"""What evaluates mining expressions, an Ibis connection: DuckDB inside this process, or Apache Spark.

Spark is for logs beyond one machine; it needs the extra `spark` and Java 17 or later.
"""

import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from ibis.backends import BaseBackend

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import staged_file
from steps.core.progress import progress
from steps.core.tables import SCHEMAS
from steps.mine.params import MineParams

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


class SparkEngine(Engine):
    """A Spark session. Driver and executors must share the folder of the stage's output, where scratch files lie."""

    def keep(self, expression: ir.Table) -> ir.Table:
        path = self._next_path()
        expression.to_parquet(path)
        return self.scan(path)

    def rows(self, expression: ir.Table) -> pa.Table:
        batches = list(self.batches(expression))  # through pandas, whole numbers beside nulls lose digits
        return pa.Table.from_batches(batches) if batches else expression.schema().to_pyarrow().empty_table()

    def batches(self, expression: ir.Table) -> Iterator[pa.RecordBatch]:
        path = self._next_path()
        expression.to_parquet(path)
        for part in sorted(path.glob("part-*.parquet")):  # Spark numbers its parts in the order of the rows
            yield from pq.ParquetFile(part).iter_batches(CHUNK_ROWS)

    def map_batches(self, expression: ir.Table, convert: Convert, schema: pa.Schema, label: str) -> ir.Table:
        from pyspark.sql.pandas.types import from_arrow_schema

        def convert_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from convert(batch).to_batches()

        path = self._next_path()
        frame = self.connection._session.sql(ibis.to_sql(expression, dialect="pyspark"))
        frame.mapInArrow(convert_all, from_arrow_schema(schema)).write.parquet(str(path))
        return self.scan(path)


def _mebibytes(limit: str) -> int:
    """`mine.memory_limit` ("1.5GB", "2 GiB") in whole MiB, as Spark wants it."""
    unit = limit.strip("0123456789. ")
    size = {"M": 1, "G": 2, "T": 3}[unit[0]]
    base = 1024 if unit.endswith("iB") else 1000
    return int(float(limit.removesuffix(unit)) * base ** (size + 1) / 2**20)


@contextmanager
def open_spark(params: MineParams, scratch: Path) -> Iterator[SparkEngine]:
    """Yield a session on `mine.spark_master`; UserError when Java or pyspark is missing."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UserError(
            "mine.engine: spark needs the package pyspark; run `make setup-all`, or pip install pyspark==4.0.5"
        ) from None
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UserError("mine.engine: spark needs Java 17 or later; install it or set mine.engine: duckdb")
    is_local = params.spark_master.startswith("local")
    if is_local:  # else Spark takes whatever python3 comes first in PATH
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": f"{_mebibytes(params.memory_limit)}m",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2" if is_local else "200",
    }
    session = (
        SparkSession.builder.config(map=settings).master(params.spark_master).appName("slimtower mine").getOrCreate()
    )
    try:
        yield SparkEngine(ibis.pyspark.connect(session), scratch)
    finally:
        session.stop()


@contextmanager
def open_engine(params: MineParams, folder: Path) -> Iterator[Engine]:
    """Yield the engine of `mine.engine`; what it keeps and spills lies below `folder`, which is left empty.

    UserError where DuckDB's memory limit is too low, TransientError where the disk is full.
    """
    with TemporaryDirectory(prefix=".scratch.", dir=folder) as scratch:
        if params.engine == "spark":
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
