"""Tables of a run, read by the columns that are needed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import UserError


def read_columns(path: Path, *names: str, filters: Any = None) -> pa.Table:
    """Columns of a Parquet file, with the metadata of its schema; `filters` as `pyarrow.parquet` takes them.

    UserError if the file is missing or lacks a column.
    """
    if not path.is_file():
        raise UserError(f"{path}: not found; run `make demo` (or `make run RECIPE=...`) to make it")
    if missing := [name for name in names if name not in pq.read_schema(path).names]:
        raise UserError(f"{path}: has no column {', '.join(missing)}; delete it and run the stage that writes it again")
    return pq.read_table(path, columns=list(names), filters=filters)
