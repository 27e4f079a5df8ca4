"""Judged sets are the queries of a split that have a relevant document; unlabelled pools are none."""

from pathlib import Path

import numpy as np

from steps.core.judged import TIES_TO, JudgedSet, read_judged_sets, tied_hits
from steps.core.tables import table_from_rows, write_table
from steps.evaluate.judging import unjudged_datasets


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
    found = read_judged_sets(tmp_path, ["test", "dev"])
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
    found = read_judged_sets(tmp_path, ["test", "dev"])
    assert [(item.dataset, item.split) for item in found] == [("one", "test"), ("two", "dev")]
    assert unjudged_datasets(tmp_path, found) == ["three", "two"]


def test_every_judgement_of_a_query_with_a_relevant_document_is_kept_and_no_other_query(tmp_path: Path) -> None:
    write_table(
        tmp_path,
        "queries",
        table_from_rows(
            "queries",
            [
                {"query_id": query, "dataset": "one", "text": f"text of {query}", "split": "test"}
                for query in ("q3", "q1", "q2", "unjudged")
            ],
        ),
    )
    grades = {("q1", "a"): 2, ("q1", "b"): 0, ("q2", "a"): 0, ("q3", "b"): 1}
    rows = [
        {"query_id": query, "dataset": "one", "doc_id": doc, "grade": grade, "split": "test"}
        for (query, doc), grade in grades.items()
    ]
    rows.append({"query_id": "q1", "dataset": "one", "doc_id": "c", "grade": 1, "split": "train"})
    write_table(tmp_path, "qrels", table_from_rows("qrels", rows))
    [found] = read_judged_sets(tmp_path, ["dev", "test"])
    assert found.qrels == {"q1": {"a": 2, "b": 0}, "q3": {"b": 1}}
    assert found.query_ids == ["q1", "q3"]
    assert found.texts == ["text of q1", "text of q3"]
    assert read_judged_sets(tmp_path, ["dev"]) == []


def test_hits_that_tie_with_the_last_come_with_it() -> None:
    held = {
        "q": [("a", 3.0), ("b", 2.0), *((f"t{at}", 1.0) for at in range(20)), ("z", 0.0)],
        "r": [("a", 3.0), ("b", 2.0), ("c", 1.5), ("d", 1.2), ("e", 1.0)],
        "s": [("a", 3.0)],
    }
    asked: list[int] = []

    def search(k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        asked.append(k)
        rows = [row[:k] for row in held.values()]
        return [np.array([score for _, score in row]) for row in rows], [[doc for doc, _ in row] for row in rows]

    judged = JudgedSet("one", "test", list(held), [""] * 3, {query: {"t19": 1} for query in held})
    assert tied_hits(judged, list(held), search, 2)[1] == [["a", "b"], ["a", "b"], ["a"]]
    assert asked == [3], "one more shows that none ties"
    scores, found = tied_hits(judged, list(held), search, 4)
    assert found == [["a", "b", *(f"t{at}" for at in range(20))], ["a", "b", "c", "d"], ["a"]]
    assert [len(row) for row in scores] == [22, 4, 1]
    asked.clear()
    tied_hits(judged, list(held), search, TIES_TO)
    assert asked == [TIES_TO], "so deep nothing is cut that counts"
    held["q"] = [(f"t{at}", 1.0) for at in range(3 * TIES_TO)]
    assert len(tied_hits(judged, list(held), search, 10)[1][0]) == TIES_TO, "a bound, where all documents are alike"


def test_ties_among_a_querys_own_document_are_counted_without_it() -> None:
    def search(k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        docs = ["q", "a", "b", "c"][:k]
        return [np.ones(len(docs))], [docs]

    judged = JudgedSet("one", "test", ["q"], [""], {"q": {"c": 1}}, ignore_identical_ids=True)
    assert tied_hits(judged, ["q"], search, 2)[1] == [["a", "b", "c"]]
