"""What mining reads, by maps of the user's own columns: a mistake in a map is named with file, line and key."""

import json
from pathlib import Path
from typing import Any

import pytest
from ingest_logs import COLUMNS, click_log, corpus, ingest, params, reasons, rows_of, shown, without, write

from pipeline.params import check_params
from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping

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


def test_a_json_column_that_some_rows_have_is_there(tmp_path: Path) -> None:
    rows = [without(BASIC[0], ["pos"]), *BASIC[1:]]
    assert reasons(ingest(tmp_path, params(click_log(tmp_path, rows)))) == [("log/path/log.jsonl", 1, "missing_field")]


def test_an_unknown_format_and_an_unreadable_parquet_file_are_user_errors(tmp_path: Path) -> None:
    source = click_log(tmp_path, BASIC, "log.parquet")
    Path(source["path"]).write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"log\.parquet: not a Parquet file"):
        ingest(tmp_path, params(source))
    (tmp_path / "log.txt").write_text("x")
    with pytest.raises(UserError, match=r"ingest\.sources\[0\]\.path.*log\.txt"):
        ingest(tmp_path, params(source | {"path": str(tmp_path / "log.txt")}))


def with_scores(folder: Path, rows: list[dict[str, Any]], name: str, **changes: Any) -> dict[str, Any]:
    return click_log(folder, BASIC, relevance=str(write(folder / name, rows))) | changes


def test_a_mapped_column_that_the_corpus_lacks_is_named(tmp_path: Path) -> None:
    corpus(tmp_path)
    source = click_log(tmp_path, BASIC, corpus_columns={"content": "body"})
    with pytest.raises(
        UserError, match=r"corpus\.jsonl: line 1: no column 'body'.*sources\[0\]\.corpus_columns\.content"
    ):
        ingest(tmp_path, params(source))


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


def test_a_score_of_jsonl_may_lack_its_query_on_the_first_line(tmp_path: Path) -> None:
    rows = [{"doc_id": "d0", "score": 1}, {"query": "red shoes", "doc_id": "d1", "score": 2}]
    out = ingest(tmp_path, params(with_scores(tmp_path, rows, "scores.jsonl")))
    assert rows_of(out, "relevance", "doc_id", "score") == [("log/d1", 2.0)]
    assert reasons(out) == [("log/relevance/scores.jsonl", 1, "missing_field")]


def test_a_mistyped_column_of_a_log_is_named() -> None:
    raw = read_mapping(Path("params.yaml"))
    source = {
        "name": "log",
        "kind": "click_log",
        "path": "log.csv",
        "corpus": "corpus.csv",
        "columns": {"query": "q", "doc_id": "d", "rnk": "r", "clicked": "c", "timestamp": "t"},
        "test_from": "2026-01-01",
        "validation_fraction": 0.1,
    }
    raw["ingest"]["sources"] = json.loads(json.dumps([source]))
    with pytest.raises(UserError, match=r"sources\.0\.columns\.rnk is unknown"):
        check_params(raw, "params.yaml")
