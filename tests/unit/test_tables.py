"""Tables are checked against their schema on write and on read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steps.core.errors import UserError
from steps.core.tables import SCHEMAS, read_table, table_from_rows, write_table


def test_round_trip(tmp_path: Path) -> None:
    table = table_from_rows("relevance", [{"query_id": "q", "doc_id": "d", "score": 0.5}])
    write_table(tmp_path, "relevance", table)
    assert read_table(tmp_path, "relevance").equals(table)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_table_can_be_empty(tmp_path: Path, name: str) -> None:
    write_table(tmp_path, name, SCHEMAS[name].empty_table())
    assert read_table(tmp_path, name).num_rows == 0


def test_a_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"query_id": ["q"], "doc": ["d"]}), tmp_path / "relevance.parquet")
    with pytest.raises(UserError, match=r"relevance\.parquet: its columns \(query_id, doc\) are not those"):
        read_table(tmp_path, "relevance")


def test_wrong_columns_are_refused_on_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="columns"):
        write_table(tmp_path, "relevance", pa.table({"query_id": ["q"]}))
    assert not list(tmp_path.iterdir())


def test_a_missing_table_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro"):
        read_table(tmp_path, "corpus")
