"""The cell `judged`: judgements and given triplets become triplets, and no known positive is anybody's negative."""

from pathlib import Path
from typing import Any

import pytest
from mine_logs import (
    document,
    hits,
    impression,
    judgement,
    mine,
    mine_judged,
    mine_relevance,
    query,
    write_found,
    write_log,
)

from slimtower.common.files import read_json
from steps.core.tables import read_table

pytestmark = pytest.mark.medium

QUERIES = [
    query("d/q1", "cumulative sum of elements"),
    query("d/q2", "sort a list in place"),
    query("d/dev", "running total", "dev"),
]
CONTENTS = {
    "cumsum": "adds up all that came before",
    "copy": "Adds up, all that came before!",  # the same text, folded
    "sum": "one number for an axis",
    "max": "largest of some values",
    "sort": "brings things into an order",
    "plot": "draws lines on a canvas",
}
DOCUMENTS = [document(f"d/{name}", content) for name, content in CONTENTS.items()]


def cells(folder: Path, candidates: dict[str, list[dict[str, Any]]], **tables: Any) -> Path:
    """The cells `click` and `judged` over these tables; returns the folder of the second."""
    log = tables.pop("log", [])
    documents = tables.pop("documents", DOCUMENTS)
    ingest = write_log(folder / "ingest", tables.pop("queries", QUERIES), documents, log, **tables)
    searched = write_found(folder / "candidates", "candidates", **candidates)
    return mine_judged(ingest, searched, mine(ingest, folder / "click"), folder / "judged")


def triplets(folder: Path) -> set[tuple[str, str, str, str]]:
    names = ("query_id", "positive_id", "negative_id", "source")
    return {tuple(row[name] for name in names) for row in read_table(folder, "triplets").to_pylist()}  # type: ignore[misc]


def scored(orders: dict[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A ranker's scores: the documents of each query, best first."""
    return [
        {"query_id": query_id, "doc_id": f"d/{doc}", "score": -float(at)}
        for query_id, order in orders.items()
        for at, doc in enumerate(order)
    ]


Q1 = [judgement("d/q1", "d/cumsum")]


def test_judged_queries_take_their_negatives_from_what_searchers_find(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bm25 = [
        *hits("d/first", "d/max", "d/cumsum", "d/sum"),  # the first rank is skipped, as it may be relevant
        *hits("d/best", "d/sum", "d/max"),
        *hits("d/known", "d/max"),
        *hits("d/copied", "d/sum", "d/copy"),  # a copy of a positive is none
        *hits("d/many", "d/cumsum", "d/plot"),
        *hits("d/dev", "d/max", "d/sum"),  # other splits train nothing
    ]
    dense = hits("d/best", "d/max", "d/sort", "d/sum")  # the best rank of all searchers counts
    names = ("first", "best", "known", "copied")
    queries = [query(f"d/{name}", f"a {name} question") for name in (*names, "many")]
    qrels = [judgement(f"d/{name}", "d/cumsum") for name in names] + [judgement("d/dev", "d/cumsum", split="dev")]
    qrels.append(judgement("d/known", "d/max", 0))  # what is judged irrelevant is a candidate at any rank
    qrels += [judgement("d/many", f"d/{doc}", at) for at, doc in enumerate(("cumsum", "sum", "max", "sort"), 1)]
    out = cells(tmp_path, {"bm25": bm25, "dense": dense}, queries=[*queries, QUERIES[-1]], qrels=qrels)
    negatives = {"d/first": "d/sum", "d/best": "d/sort", "d/known": "d/max"}
    expected = {(query_id, "d/cumsum", negative, "judged") for query_id, negative in negatives.items()}
    many = {
        ("d/many", f"d/{doc}", "d/plot", "judged") for doc in ("cumsum", "sum", "max", "sort")
    }  # max_positives is 2
    assert triplets(out) == expected | many
    report = read_json(out / "report.json")
    assert report["rows"]["judged"] == len(report["samples"]) == 7
    assert report["dropped_positives"]["judged"]["no_negative_left"] == 1
    assert "WARNING" not in capsys.readouterr().err


def test_given_triplets_stay_but_for_negatives_that_are_relevant(tmp_path: Path) -> None:
    """And their positives are nobody's negatives."""
    dataset_triplets = [
        {"query_id": "d/q1", "positive_id": "d/sum", "negative_id": "d/plot"},
        {"query_id": "d/q1", "positive_id": "d/sum", "negative_id": "d/copy"},  # has the text of a judged document
        {"query_id": "d/dev", "positive_id": "d/sum", "negative_id": "d/plot"},
    ]
    log = [impression("d/q1", "d/max", True), impression("d/q1", "d/sum", False, rank=2)]
    out = cells(tmp_path, {"bm25": hits("d/q1", "d/sort", "d/sum")}, qrels=Q1, given=dataset_triplets, log=log)
    assert triplets(out) == {("d/q1", "d/sum", "d/plot", "given")}
    report = read_json(out / "report.json")
    assert report["dropped_positives"]["given"] == {"negative_is_relevant_or_document_unknown": 1}


def test_what_was_clicked_is_no_negative_of_judgements_and_the_other_way_round(tmp_path: Path) -> None:
    log = [
        impression("d/q1", "d/sum", True),
        impression("d/q1", "d/cumsum", False, rank=2),
        impression("d/q1", "d/plot", False, rank=3),
    ]
    ranked = hits("d/q1", "d/max", "d/sum", "d/sort")
    out = cells(tmp_path, {"bm25": ranked}, qrels=[judgement("d/q1", "d/cumsum")], log=log)
    assert triplets(out) == {("d/q1", "d/sum", "d/plot", "click_one_hop"), ("d/q1", "d/cumsum", "d/sort", "judged")}


def test_what_is_relevant_to_a_query_of_the_same_text_is_no_negative(tmp_path: Path) -> None:
    twins = [*QUERIES, query("d/twin", "Cumulative sum, of elements?")]
    ranked = [*hits("d/q1", "d/max", "d/sum", "d/plot"), *hits("d/twin", "d/max", "d/cumsum", "d/plot")]
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/twin", "d/sum")]
    dataset_triplets = [{"query_id": "d/q1", "positive_id": "d/cumsum", "negative_id": "d/sum"}]
    assert triplets(cells(tmp_path, {"bm25": ranked}, queries=twins, qrels=qrels, given=dataset_triplets)) == {
        ("d/q1", "d/cumsum", "d/plot", "judged"),
        ("d/twin", "d/sum", "d/plot", "judged"),
    }


@pytest.mark.slow
def test_a_rankers_scores_count_where_the_user_gave_none(tmp_path: Path) -> None:
    out = cells(tmp_path, {"bm25": []}, qrels=[judgement("d/q1", "d/cumsum")])
    names = ("cumsum", "sum", "sort", "max", "plot")
    ranked = write_found(tmp_path / "rank", "relevance", cross=scored({"d/q2": names, "d/dev": names}))
    mined = mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance", ranked)
    [(query_id, positive, negative, source)] = triplets(mined)
    assert (query_id, positive, source) == ("d/q2", "d/cumsum", "relevance_one_hop")
    assert negative in {"d/sort", "d/max", "d/plot"}  # two ranks are skipped

    dev = [{"query_id": "d/dev", "doc_id": "d/max", "score": 1.0}]  # a score of a dev query turns no ranker off
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], dev)
    mined = mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance", ranked)
    assert {row[0] for row in triplets(mined)} == {"d/q2"}
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], scored({"d/q1": names}))
    again = mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance", ranked)
    assert {row[0] for row in triplets(again)} == {"d/q1"}


@pytest.mark.slow
def test_judged_triplets_lose_no_more_than_negatives_that_a_ranker_finds_best(tmp_path: Path) -> None:
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/q2", "d/sort")]
    searched = [*hits("d/q1", "d/max", "d/sum"), *hits("d/q2", "d/max", "d/plot")]
    out = cells(tmp_path, {"bm25": searched}, qrels=qrels)
    assert triplets(out) == {("d/q1", "d/cumsum", "d/sum", "judged"), ("d/q2", "d/sort", "d/plot", "judged")}
    orders = {"d/q1": ("sum", "cumsum", "max"), "d/q2": ("sort", "plot", "max")}  # two ranks are skipped
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], scored(orders), qrels)
    remaining = triplets(mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance"))
    assert {row for row in remaining if row[3] == "judged"} == {("d/q2", "d/sort", "d/plot", "judged")}


def test_without_judgements_and_scores_all_is_passed_on(tmp_path: Path) -> None:
    log = [impression("d/q1", "d/sum", True), impression("d/q1", "d/plot", False, rank=2)]
    judged = cells(tmp_path, {"bm25": hits("d/q1", "d/max", "d/sum")}, log=log)
    scored = mine_relevance(tmp_path / "ingest", judged, tmp_path / "relevance")
    for name in ("triplets.parquet", "associations.parquet"):
        clicked = (tmp_path / "click" / name).read_bytes()
        assert (judged / name).read_bytes() == (scored / name).read_bytes() == clicked
    rows = {"click_one_hop": 1, "click_multi_hop": 0, "judged": 0, "given": 0}
    assert read_json(judged / "report.json")["rows"] == rows
    assert read_json(scored / "report.json")["rows"]["relevance_one_hop"] == 0


@pytest.mark.slow
def test_what_people_called_irrelevant_is_no_positive_however_it_scores(tmp_path: Path) -> None:
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/q1", "d/sum", 0)]
    dataset_triplets = [{"query_id": "d/q2", "positive_id": "d/sort", "negative_id": "d/plot"}]
    out = cells(tmp_path, {"bm25": []}, qrels=qrels, given=dataset_triplets)
    before = {("d/q1", "d/cumsum", "d/sum", "judged"), ("d/q2", "d/sort", "d/plot", "given")}
    assert triplets(out) == before
    orders = {"d/q1": ("sum", "cumsum", "max", "plot"), "d/q2": ("plot", "sort", "max", "sum")}
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], scored(orders), qrels, dataset_triplets)
    assert triplets(mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance")) == before
