"""The same expressions on Apache Spark, for logs beyond one machine. Needs the extra `spark` and Java 17 or later."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.mine.engine import CHUNK_ROWS, Convert, Engine
from steps.mine.params import MineParams


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
