"""What serving costs: measured on dev queries, split into its parts, and refused above the limit."""

from pathlib import Path

import ir_measures
import pytest
from ir_measures import nDCG
from stages import write_ingest

from steps.core.errors import UserError
from steps.core.release import load_release
from steps.core.tables import read_table, table_from_rows, write_table
from steps.release.probe_texts import probe_texts
from steps.release.quality import Cost, check_costs, mean_ndcg, read_dev_queries

COST = Cost(queries=600, model=0.5, exported=0.5, served=0.498, approximate=0.4)


def test_the_parts_of_the_loss_add_up_to_the_whole() -> None:
    assert COST.total == pytest.approx(0.2)
    assert COST.parts() == pytest.approx({"export": 0.0, "precision": 0.004, "index": 0.196})
    assert sum(COST.parts().values()) == pytest.approx(COST.total)
    assert Cost(1, 0.0, 0.0, 0.0, 0.0).total == 0.0


@pytest.mark.parametrize(
    ("changes", "mend"),
    [
        ({}, "raise index.target_recall"),
        ({"served": 0.42}, "set release.precision: fp32"),
        ({"exported": 0.42, "served": 0.42}, "set release.format"),
    ],
)
def test_above_the_limit_the_message_names_the_dearest_part(changes: dict[str, float], mend: str) -> None:
    cost = Cost(**{**vars(COST), **changes})
    with pytest.raises(UserError, match=f"20.00% of nDCG@10 on dev queries of 'two' .*{mend}"):
        check_costs({"one": Cost(9, 0.5, 0.5, 0.5, 0.499), "two": cost}, 0.01)


def test_a_loss_within_the_limit_and_a_gain_pass() -> None:
    check_costs({"one": Cost(9, 0.5, 0.5, 0.5, 0.495), "two": Cost(9, 0.5, 0.6, 0.6, 0.6)}, 0.0100001)


def test_only_judged_dev_queries_count(tmp_path: Path) -> None:
    ingest = write_ingest(tmp_path)
    qrels = read_table(ingest, "qrels").to_pylist()
    dev = [row for row in qrels if row["split"] == "dev"]
    dev[0]["grade"] = 0
    write_table(ingest, "qrels", table_from_rows("qrels", dev))
    queries = read_dev_queries(ingest, ["one", "two"])
    assert [(asked.dataset, len(asked.ids)) for asked in queries] == [("two", 7)]
    assert dev[0]["query_id"] not in queries[0].ids
    texts = {row["query_id"]: row["text"] for row in read_table(ingest, "queries").to_pylist()}
    assert [texts[query] for query in queries[0].ids] == queries[0].texts


def test_ndcg_of_a_release_is_that_of_its_hits(released: Path) -> None:
    release = load_release(released / "models/release/2l")
    (asked,) = read_dev_queries(released / "data/ingest", release.datasets)
    vectors = release.encode(asked.texts)
    scores, ids = release.search("two", vectors, 10, "flat")
    run = [
        ir_measures.ScoredDoc(query, doc, float(score))
        for query, docs, line in zip(asked.ids, ids, scores, strict=True)
        for doc, score in zip(docs, line, strict=True)
    ]
    qrels = [ir_measures.Qrel(query, doc, grade) for query, docs in asked.qrels.items() for doc, grade in docs.items()]
    expected = ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10]
    assert mean_ndcg(release, asked, vectors, "flat") == pytest.approx(expected, abs=1e-9)


def test_probes_are_training_queries_then_titles(tmp_path: Path) -> None:
    ingest = write_ingest(tmp_path)
    assert all(text.startswith("how to") for text in probe_texts(ingest, 8))
    rows = [row for row in read_table(ingest, "queries").to_pylist() if row["split"] != "train"]
    write_table(ingest, "queries", table_from_rows("queries", rows))
    assert probe_texts(ingest, 2) == ["sum of sum", "mean of sum"]
