"""Judged sets are the queries of a split that have a relevant document; unlabelled pools are none."""

from pathlib import Path

import numpy as np
from rows import write_rows

from steps.core.judged import TIES_TO, JudgedSet, read_judged_sets, tied_hits
from steps.evaluate.judging import unjudged_datasets


def test_evaluation_queries_with_a_relevant_document_have_all_their_judgements(tmp_path: Path) -> None:
    queries = [
        ("q3", "one", "test"), ("q1", "one", "test"), ("q2", "one", "test"), ("unjudged", "one", "test"),
        ("e", "one", "dev"), ("d", "two", "dev"), ("t", "two", "train"),
    ]  # fmt: skip
    write_rows(tmp_path, "queries", [(query, dataset, f"text of {query}", split) for query, dataset, split in queries])
    qrels = [
        ("q1", "one", "a", 2, "test"), ("q1", "one", "b", 0, "test"), ("q2", "one", "a", 0, "test"),
        ("q3", "one", "b", 1, "test"), ("q1", "one", "c", 1, "train"), ("e", "one", "a", 1, "dev"),
        ("d", "two", "a", 1, "dev"), ("t", "two", "a", 1, "train"),
    ]  # fmt: skip
    write_rows(tmp_path, "qrels", qrels)
    write_rows(tmp_path, "corpus", [(f"{name}/d", name, "", "", "text") for name in ("one", "two", "three")])
    judged_sets = read_judged_sets(tmp_path, ["test", "dev"])
    assert [(judged.dataset, judged.split) for judged in judged_sets] == [
        ("one", "test"),
        ("one", "dev"),
        ("two", "dev"),
    ]
    assert judged_sets[0].qrels == {"q1": {"a": 2, "b": 0}, "q3": {"b": 1}}
    assert judged_sets[0].query_ids == ["q1", "q3"] and judged_sets[0].texts == ["text of q1", "text of q3"]
    assert unjudged_datasets(tmp_path, judged_sets) == ["three", "two"]


def test_hits_that_tie_with_the_last_come_with_it() -> None:
    scored_hits = {
        "q": [("a", 3.0), ("b", 2.0), *((f"t{at}", 1.0) for at in range(20)), ("z", 0.0)],
        "r": [("a", 3.0), ("b", 2.0), ("c", 1.5), ("d", 1.2), ("e", 1.0)],
        "s": [("a", 3.0)],
    }
    depths: list[int] = []

    def search(k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        depths.append(k)
        rows = [row[:k] for row in scored_hits.values()]
        return [np.array([score for _, score in row]) for row in rows], [[doc for doc, _ in row] for row in rows]

    judged = JudgedSet("one", "test", list(scored_hits), [""] * 3, {query: {"t19": 1} for query in scored_hits})
    assert tied_hits(judged, list(scored_hits), search, 2)[1] == [["a", "b"], ["a", "b"], ["a"]]
    assert depths == [3], "one more shows that none ties"
    scores, doc_ids = tied_hits(judged, list(scored_hits), search, 4)
    assert doc_ids == [["a", "b", *(f"t{at}" for at in range(20))], ["a", "b", "c", "d"], ["a"]]
    assert [len(row) for row in scores] == [22, 4, 1]
    depths.clear()
    tied_hits(judged, list(scored_hits), search, TIES_TO)
    assert depths == [TIES_TO], "so deep nothing is cut that counts"
    scored_hits["q"] = [(f"t{at}", 1.0) for at in range(3 * TIES_TO)]
    assert len(tied_hits(judged, list(scored_hits), search, 10)[1][0]) == TIES_TO, (
        "a bound, where all documents are alike"
    )


def test_ties_among_a_querys_own_document_are_counted_without_it() -> None:
    def search(k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        docs = ["q", "a", "b", "c"][:k]
        return [np.ones(len(docs))], [docs]

    judged = JudgedSet("one", "test", ["q"], [""], {"q": {"c": 1}}, ignore_identical_ids=True)
    assert tied_hits(judged, ["q"], search, 2)[1] == [["a", "b", "c"]]
