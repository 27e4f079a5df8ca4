"""The stage as a whole: what it writes, what it refuses, and that it writes the same bytes again."""

import random
from pathlib import Path

import pytest
from mine_logs import PARAMS, document, impression, mine, query, random_log, write_log
from pydantic import ValidationError

from steps.core.errors import UserError
from steps.core.files import read_json
from steps.core.params.mine import MineParams
from steps.core.tables import read_table
from steps.mine.leakage import audit

QUERIES = [
    query("d/q1", "cumulative sum of elements"),
    query("d/q2", "the cumulative sum along an axis of elements"),
    query("d/q3", "sort a list in place"),
    query("d/test", "running total", "test"),
]
DOCUMENTS = [document(f"d/{name}", f"Text about {name}.") for name in ("cumsum", "sum", "sort", "max")]
LOG = [
    impression("d/q2", "d/cumsum", True),
    impression("d/q2", "d/sum", False, rank=2),
    impression("d/q3", "d/sort", True, session=1),
    impression("d/q3", "d/max", False, session=1, rank=2),
    impression("d/test", "d/cumsum", True, session=2),
    impression("d/test", "d/sum", False, session=2, rank=2),
]


def test_writes_triplets_of_both_hops_and_says_why(tmp_path: Path) -> None:
    out = mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, LOG), tmp_path / "mine", click_threshold=0.05)
    assert sorted(path.name for path in out.iterdir()) == ["associations.parquet", "report.json", "triplets.parquet"]
    assert read_table(out, "associations").to_pylist() == [
        {"query_id": "d/q1", "other_query_id": "d/q2", "kind": "click"}
    ]
    rows = [tuple(row.values()) for row in read_table(out, "triplets").to_pylist()]
    assert rows == [
        ("d/q1", "d/cumsum", "d/sum", "click_multi_hop", "d/q2", 0.5),
        ("d/q2", "d/cumsum", "d/sum", "click_one_hop", "", 1.0),
        ("d/q3", "d/sort", "d/max", "click_one_hop", "", 1.0),
    ]
    report = read_json(out / "report.json")
    assert report["rows"] == {"click_one_hop": 2, "click_multi_hop": 1}
    assert report["impressions"] == {"read": 6, "dropped": {"test_query": 2}}
    assert {row["term"] for row in report["associating_terms"]} == {"cumulative", "elements"}
    hop = next(sample for sample in report["samples"] if sample["source"] == "click_multi_hop")
    assert hop["query"]["text"] == "cumulative sum of elements"
    assert hop["via_query"]["text"] == "the cumulative sum along an axis of elements"
    assert hop["positive"]["content"] == "Text about cumsum."
    assert "cumulative 0." in hop["why"]


def test_same_rows_in_any_order_give_the_same_bytes(tmp_path: Path) -> None:
    tables = random_log(seed=1)
    first = mine(write_log(tmp_path / "a", *tables), tmp_path / "out_a")
    for rows in tables:
        random.Random(2).shuffle(rows)
    second = mine(write_log(tmp_path / "b", *tables), tmp_path / "out_b")
    third = mine(tmp_path / "b", tmp_path / "out_b")
    names = sorted(path.name for path in first.iterdir())
    assert read_table(first, "triplets").num_rows > 50
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes() == (third / name).read_bytes()


def test_only_training_queries_of_one_data_set_meet(tmp_path: Path) -> None:
    queries, documents, impressions = random_log(seed=4)
    out = mine(write_log(tmp_path / "ingest", queries, documents, impressions), tmp_path / "mine")
    split = {row["query_id"]: row["split"] for row in queries}
    rows = read_table(out, "triplets").to_pylist()
    assert {row["source"] for row in rows} == {"click_one_hop", "click_multi_hop"}
    for row in rows:
        ids = [row["query_id"], row["via_query_id"] or row["query_id"]]
        assert {split[name] for name in ids} == {"train"}
        assert len({name.split("/")[0] for name in [*ids, row["positive_id"], row["negative_id"]]}) == 1
    report = read_json(out / "report.json")
    dropped = sum(split[row["query_id"]] != "train" for row in impressions)
    assert sum(report["impressions"]["dropped"].values()) == dropped
    assert len(report["samples"]) == 20
    assert report["associations"]["kept"] == read_table(out, "associations").num_rows


def test_impressions_of_unknown_ids_are_counted(tmp_path: Path) -> None:
    log = [*LOG, impression("d/q3", "d/gone", False), impression("d/gone", "d/sum", True)]
    out = mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, log), tmp_path / "mine")
    dropped = read_json(out / "report.json")["impressions"]["dropped"]
    assert dropped == {"test_query": 2, "unknown_document": 1, "unknown_query": 1}


def test_an_empty_log_writes_empty_tables_and_says_so(tmp_path: Path) -> None:
    out = mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, []), tmp_path / "mine")
    assert read_table(out, "triplets").num_rows == read_table(out, "associations").num_rows == 0
    report = read_json(out / "report.json")
    assert "no impressions" in report["note"]
    assert report["rows"] == {"click_one_hop": 0, "click_multi_hop": 0}
    assert report["samples"] == []


def test_a_planted_leak_fails_the_stage_and_leaves_nothing(tmp_path: Path) -> None:
    queries = [*QUERIES, query("d/twin", "Sort a list, in place!", "dev")]
    with pytest.raises(UserError, match="d/q3 = d/twin"):
        mine(write_log(tmp_path / "ingest", queries, DOCUMENTS, LOG), tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["ingest"]


def test_audit_compares_folded_texts() -> None:
    assert audit([("q", "a b")], [("t", "a c")], "x")["leaks"] == 0
    with pytest.raises(UserError, match="1 queries"):
        audit([("q", "\uff21  b?")], [("t", "a B")], "x")  # full-width letter


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    write_log(tmp_path, QUERIES, DOCUMENTS, LOG)
    (tmp_path / "impressions.parquet").unlink()
    with pytest.raises(UserError, match=r"impressions\.parquet: not found"):
        mine(tmp_path, tmp_path / "mine")


@pytest.mark.parametrize(
    ("name", "value"),
    [("memory_limit", "2 gigs"), ("planner", "magic"), ("click_threshold", 1.0), ("max_associations", 0)],
)
def test_a_bad_parameter_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        MineParams(**{**PARAMS, name: value})
