"""Dictionary columns whose text would not fit into one chunk: counted, filtered and written without spelling it out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steps.core import tables
from steps.core.tables import read_table, write_table
from steps.ingest.coded_columns import among, coded, distinct

ROWS = 5_000_000
TEXTS = pa.array(["a" * 500, "b" * 500, "never used"])  # 5 million of them are more than 2 GiB


def test_texts_of_more_than_two_gigabytes_are_counted_and_chosen() -> None:
    large = pa.chunked_array([coded(np.arange(ROWS, dtype=np.int32) % 2, TEXTS)])
    assert distinct(large) == 2
    chosen = among(large, {"b" * 500, "unheard of"})
    assert len(large.filter(chosen)) == ROWS // 2
    assert chosen[:4].to_pylist() == [False, True, False, True]


def test_chunks_have_dictionaries_of_their_own() -> None:
    chunks = [coded(np.array([0, 1]), pa.array(["a", "b"])), coded(np.array([1, 1, 0]), pa.array(["c", "a"]))]
    column = pa.chunked_array(chunks)
    plain = column.cast(pa.string())
    assert distinct(column) == distinct(plain) == 3
    for texts in ({"a"}, {"c", "x"}, set()):
        assert among(column, texts).to_pylist() == among(plain, texts).to_pylist()


def test_a_table_is_written_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 3)
    texts = pa.array([f"t{n}" for n in range(7)])
    scores = pa.array(np.arange(7), pa.float32())
    dictionaries = {"query_id": coded(np.arange(7), texts), "doc_id": coded(np.arange(7)[::-1], texts), "score": scores}
    plain = {"query_id": texts, "doc_id": texts, "score": scores}
    path = write_table(tmp_path, "relevance", pa.table(dictionaries), pa.table(plain))
    written = read_table(tmp_path, "relevance")
    assert written["query_id"].to_pylist() == texts.to_pylist() * 2
    assert written["doc_id"].to_pylist() == texts.to_pylist()[::-1] + texts.to_pylist()
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [3, 3, 1, 3, 3, 1]
