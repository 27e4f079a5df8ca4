"""The engine of `mine.engine`, ready for expressions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import assert_never

from steps.mine.engine import Engine
from steps.mine.params import MineParams


@contextmanager
def open_engine(params: MineParams, folder: Path) -> Iterator[Engine]:
    """Yield the engine of `mine.engine`; what it keeps and spills lies below `folder`, which is left empty."""
    with TemporaryDirectory(prefix=".scratch.", dir=folder) as scratch:
        match params.engine:
            case "duckdb":
                from steps.mine.duckdb_engine import open_duckdb

                with open_duckdb(params, Path(scratch)) as duckdb:
                    yield duckdb
            case "spark":
                from steps.mine.spark_engine import open_spark  # pyspark is an extra

                with open_spark(params, Path(scratch)) as spark:
                    yield spark
            case _:
                assert_never(params.engine)
