"""Evaluation sets are the judged dev and test queries of the data sets."""

from pathlib import Path

from steps.core.tables import table_from_rows, write_table
from steps.evaluate.questions import read_evaluation_sets, unjudged_datasets


def write(folder: Path, splits: dict[str, tuple[str, str]]) -> None:
    rows = [
        {"query_id": query, "dataset": dataset, "text": query, "split": split}
        for query, (dataset, split) in splits.items()
    ]
    write_table(folder, "queries", table_from_rows("queries", rows))
    qrels = [
        {"query_id": row["query_id"], "dataset": row["dataset"], "doc_id": "d", "grade": 1, "split": row["split"]}
        for row in rows
        if row["split"] != "train"
    ]
    write_table(folder, "qrels", table_from_rows("qrels", qrels))


def test_training_queries_are_no_evaluation_set(tmp_path: Path) -> None:
    write(tmp_path, {"a": ("one", "test"), "b": ("one", "dev"), "c": ("two", "train")})
    found = read_evaluation_sets(tmp_path, ["test", "dev"])
    assert [(item.dataset, item.split, item.query_ids) for item in found] == [
        ("one", "test", ["a"]),
        ("one", "dev", ["b"]),
    ]


def test_data_sets_without_a_judged_test_query_are_told_from_the_others(tmp_path: Path) -> None:
    write(tmp_path, {"a": ("one", "test"), "b": ("two", "dev"), "c": ("two", "train")})
    rows = [
        {"doc_id": f"{name}/d", "dataset": name, "title": "", "topic": "", "content": "text"}
        for name in ("one", "two", "three")
    ]
    write_table(tmp_path, "corpus", table_from_rows("corpus", rows))
    found = read_evaluation_sets(tmp_path, ["test", "dev"])
    assert [(item.dataset, item.split) for item in found] == [("one", "test"), ("two", "dev")]
    assert unjudged_datasets(tmp_path, found) == ["three", "two"]
