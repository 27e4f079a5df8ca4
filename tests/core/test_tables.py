"""Tables are checked against their schema on write and on read."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slimtower.common.errors import UserError
from steps.core.tables import read_table, stream_table, table_from_rows, write_table


@pytest.mark.medium
def test_tables_are_written_one_at_a_time_as_they_are_made(tmp_path: Path) -> None:
    alive: list[weakref.ref[pa.Table]] = []

    def tables() -> Iterator[pa.Table]:
        for number in range(4):
            gc.collect()
            assert sum(table() is not None for table in alive) <= 1  # the last one, still in the writer's hands
            rows = [{"text_row": number, "doc_row": column, "score": column / 2} for column in range(3)]
            table = table_from_rows("scores", rows if number != 2 else [])
            alive.append(weakref.ref(table))
            yield table
            del table

    stream_table(tmp_path, "scores", tables())
    scores = read_table(tmp_path, "scores")
    assert scores["text_row"].to_pylist() == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    assert scores["score"].to_pylist() == [0.0, 0.5, 1.0] * 3


def test_a_failure_while_tables_are_made_leaves_no_file(tmp_path: Path) -> None:
    def tables() -> Iterator[pa.Table]:
        yield table_from_rows("scores", [{"text_row": 0, "doc_row": 0, "score": 0.0}])
        raise UserError("no more")

    with pytest.raises(UserError, match="no more"):
        stream_table(tmp_path, "scores", tables())
    assert not list(tmp_path.iterdir())


def test_a_foreign_file_a_missing_one_and_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="columns"):
        write_table(tmp_path, "relevance", pa.table({"query_id": ["q"]}))
    with pytest.raises(UserError, match=r"relevance\.parquet: .*dvc repro"):
        read_table(tmp_path, "relevance")
    pq.write_table(pa.table({"query_id": ["q"], "doc": ["d"]}), tmp_path / "relevance.parquet")
    with pytest.raises(UserError, match=r"relevance\.parquet: its columns \(query_id, doc\) are not those"):
        read_table(tmp_path, "relevance")
