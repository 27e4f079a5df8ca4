"""Relevance tables and term scores that a user brings: known ids only, highest score of a pair, bad rows."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from beir_folders import sound_folder
from ingest_logs import COLUMNS, click_log, impression, ingest, params, reasons, rows_of, write

from slimtower.common.errors import UserError
from steps.ingest.rejects import Rejects
from steps.ingest.run import read_term_scores

LOG = [
    impression("red shoes", 0) | {"qid": "q1"},
    impression("blue hat", 1) | {"qid": "q2"},
    impression("green coat", 6, clicked=True) | {"qid": "q3"},
    impression("red shoes", 1) | {"qid": "q2"},  # q2 names two texts
]


def source_with(folder: Path, rows: list[dict[str, Any]], name: str = "scores.jsonl", **changes: Any) -> dict[str, Any]:
    relevance = str(write(folder / name, rows))
    return click_log(folder, LOG, columns=COLUMNS | {"query_id": "qid"}, relevance=relevance) | changes


def relevance(out: Path) -> dict[tuple[str, str], float]:
    texts = dict(rows_of(out, "queries", "query_id", "text"))
    return {
        (texts[query], doc): score for query, doc, score in rows_of(out, "relevance", "query_id", "doc_id", "score")
    }


def test_scores_by_id_or_text_and_of_a_pair_the_highest(tmp_path: Path) -> None:
    rows = [
        {"query_id": "q1", "doc_id": "d0", "score": 0.25},
        {"query": "Red, shoes", "doc_id": "d0", "score": "0.5"},
        {"query_id": "q1", "doc_id": "d0", "score": -1},
        {"query": "green coat", "doc_id": "d1", "score": 3},
        {"query_id": "q2", "doc_id": "d1", "score": 1},  # 5
        {"query_id": "q9", "doc_id": "d1", "score": 1},
        {"query": "unheard of", "doc_id": "d1", "score": 1},
        {"query_id": "q1", "doc_id": "d99", "score": 1},
        {"query_id": "q1", "doc_id": "d1", "score": "high"},
        {"query_id": "q1", "doc_id": "d1", "score": "nan"},  # 10
        {"query_id": "q1", "doc_id": "d1", "score": 1e39},
        {"query_id": "q1", "doc_id": "d1", "score": True},
        {"query_id": "q1", "doc_id": "d1"},
        {"doc_id": "d1", "score": 1},
    ]
    out = ingest(tmp_path, params(source_with(tmp_path, rows)))
    assert relevance(out) == {("red shoes", "log/d0"): 0.5, ("green coat", "log/d1"): 3.0}
    assert '"relevance_pairs_repeated": 2' in (out / "report.json").read_text()
    assert [row[1:] for row in reasons(out)] == [
        (5, "ambiguous_query"), (6, "unknown_query"), (7, "unknown_query"), (8, "unknown_document"), (9, "bad_score"),
        (10, "bad_score"), (11, "bad_score"), (12, "bad_score"), (13, "missing_field"), (14, "missing_field"),
    ]  # fmt: skip


def test_columns_of_the_relevance_table_are_mapped_and_missing_ones_named(tmp_path: Path) -> None:
    rows = [{"text": "red shoes", "product": "d0", "grade": 2}]
    mapped = {"query": "text", "doc_id": "product", "score": "grade"}
    out = ingest(tmp_path, params(source_with(tmp_path, rows, "scores.csv", relevance_columns=mapped)))
    assert rows_of(out, "relevance", "doc_id", "score") == [("log/d0", 2.0)]
    wrong = source_with(tmp_path, rows, "scores.csv", relevance_columns=mapped | {"score": "grades"})
    with pytest.raises(
        UserError, match=r"scores\.csv: line 1: no column 'grades'.*relevance_columns\.score.*'grade'\?"
    ):
        ingest(tmp_path, params(wrong))
    unnamed = source_with(tmp_path, rows, "scores.csv", relevance_columns={"doc_id": "product", "score": "grade"})
    with pytest.raises(UserError, match=r"scores\.csv: line 2: neither 'query_id' nor 'query'"):
        ingest(tmp_path, params(unnamed))


def test_term_scores_are_one_positive_number_a_word(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv.gz"
    lines = ["term\tscore", "Shoes\t2.5", "café\t1", "two words\t1", "shoes\t3", "zero\t0", "minus\t-1", "inf\tinf"]
    lines += ["nan\tnan", "tiny\t1e-60", "huge\t1e60", "text\thigh", "alone", "a\t1\t2", "--\t1", "hat\t0.125"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    rejects = Rejects(1.0)
    table = read_term_scores(path, rejects)
    assert table.to_pydict() == {"term": ["café", "hat", "shoes"], "score": [1.0, 0.125, 2.5]}
    assert [(row.line, row.reason) for row in rejects.rows] == [
        (4, "not_one_word"), (5, "duplicate_term"), *((line, "bad_score") for line in range(6, 13)),
        (13, "missing_field"), (14, "too_many_columns"), (15, "not_one_word"),
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"12 of 15 rows"):
        read_term_scores(path, Rejects(0.5))


def test_a_ranker_may_have_scored_queries_outside_the_log_but_not_only_such(tmp_path: Path) -> None:
    rows = [{"query": f"other {n}", "doc_id": "d0", "score": n} for n in range(9)]
    logged = {"query": "red shoes", "doc_id": "d0", "score": 1}
    out = ingest(tmp_path, params(source_with(tmp_path, [*rows, logged]), max_reject_ratio=0.0))
    assert relevance(out) == {("red shoes", "log/d0"): 1.0}
    assert [row[2] for row in reasons(out)] == ["unknown_query"] * 9
    with pytest.raises(UserError, match=r"relevance: none of the 9 rows of .* gives a score \(unknown_query 9\)"):
        ingest(tmp_path, params(source_with(tmp_path, rows)))


@pytest.mark.parametrize("name", ["scores.tsv", "scores.parquet"])
def test_a_beir_source_may_bring_scores_in_its_own_ids(tmp_path: Path, name: str) -> None:
    pairs = [("q2", "d1"), ("q1", "d2"), ("q1", "d0"), ("q99", "d0")]
    scores = write(tmp_path / name, [{"query_id": query, "doc_id": doc, "score": 0.5} for query, doc in pairs])
    source = {"name": "toy", "kind": "beir", "path": str(sound_folder(tmp_path / "beir"))}
    out = ingest(tmp_path, params(source | {"relevance": str(scores)}))
    assert rows_of(out, "relevance", "query_id", "doc_id", "score") == [
        ("toy/q1", "toy/d0", 0.5), ("toy/q1", "toy/d2", 0.5), ("toy/q2", "toy/d1", 0.5),
    ]  # fmt: skip
    assert [row[2] for row in reasons(out)] == ["unknown_query"]
