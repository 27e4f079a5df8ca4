"""What mining reads, by maps of the user's own columns: a mistake in a map is named with file, line and key."""

from pathlib import Path
from typing import Any

import pytest
from ingest_logs import COLUMNS, click_log, ingest, params, rows_of, shown, write

from slimtower.common.errors import UserError

BASIC = [
    shown("red shoes", 0, "d0", clicked=True),
    shown("red shoes", 0, "d1", rank=2),
    shown("green coat", 6, "d3", clicked=True),
]


@pytest.mark.parametrize(
    ("name", "where"),
    [("log.csv", "line 1"), ("log.tsv.gz", "line 1"), ("log.jsonl", "line 1"), ("log.parquet", "schema")],
)
def test_a_mapped_column_that_the_file_lacks_is_named_with_file_line_and_nearest(
    tmp_path: Path, name: str, where: str
) -> None:
    source = click_log(tmp_path, BASIC, name, columns=COLUMNS | {"rank": "poss"})
    with pytest.raises(UserError) as failure:
        ingest(tmp_path, params(source))
    message = str(failure.value)
    assert f"{name}: {where}: no column 'poss', which params.yaml: ingest.sources[0].columns.rank names" in message
    assert "did you mean 'pos'?" in message
    assert all(has in message for has in BASIC[0])


def with_scores(folder: Path, rows: list[dict[str, Any]], name: str, **changes: Any) -> dict[str, Any]:
    return click_log(folder, BASIC, relevance=str(write(folder / name, rows))) | changes


def test_columns_of_the_relevance_table_are_mapped_and_missing_ones_named(tmp_path: Path) -> None:
    rows = [{"text": "red shoes", "product": "d0", "grade": 2}]
    mapped = {"query": "text", "doc_id": "product", "score": "grade"}
    out = ingest(tmp_path, params(with_scores(tmp_path, rows, "scores.csv", relevance_columns=mapped)))
    assert rows_of(out, "relevance", "doc_id", "score") == [("log/d0", 2.0)]
    wrong = with_scores(tmp_path, rows, "scores.csv", relevance_columns=mapped | {"score": "grades"})
    with pytest.raises(
        UserError, match=r"scores\.csv: line 1: no column 'grades'.*relevance_columns\.score.*'grade'\?"
    ):
        ingest(tmp_path, params(wrong))
    unnamed = with_scores(tmp_path, rows, "scores.csv", relevance_columns={"doc_id": "product", "score": "grade"})
    with pytest.raises(UserError, match=r"scores\.csv: line 2: neither 'query_id' nor 'query'"):
        ingest(tmp_path, params(unnamed))
