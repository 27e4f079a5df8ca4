"""The cell `judged`: judgements and given triplets become triplets, and no known positive is anybody's negative."""

from pathlib import Path
from typing import Any

import pytest
from mine_logs import (
    document,
    found,
    impression,
    judgement,
    mine,
    mine_judged,
    mine_relevance,
    query,
    write_found,
    write_log,
)

from slimtower.common.errors import UserError
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


def test_a_judged_query_takes_a_negative_between_the_two_ranks(tmp_path: Path) -> None:
    ranked = found("d/q1", "d/max", "d/cumsum", "d/sum")  # judged_skip is 1: the first may be relevant
    out = cells(tmp_path, {"bm25": ranked}, qrels=[judgement("d/q1", "d/cumsum")])
    assert triplets(out) == {("d/q1", "d/cumsum", "d/sum", "judged")}
    report = read_json(out / "report.json")
    assert report["rows"] == {"click_one_hop": 0, "click_multi_hop": 0, "judged": 1, "given": 0}
    assert report["note"] == ""
    assert report["samples"][0]["source"] == "judged"
    assert "judged 1" in report["samples"][0]["why"] and "rank 3" in report["samples"][0]["why"]


def test_all_judged_positives_are_mined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qrels = [judgement("d/q1", f"d/{name}", grade) for grade, name in enumerate(("cumsum", "sum", "max", "sort"), 1)]
    out = cells(tmp_path, {"bm25": found("d/q1", "d/cumsum", "d/plot")}, qrels=qrels)  # max_positives is 2
    assert [row[1] for row in sorted(triplets(out))] == ["d/cumsum", "d/max", "d/sort", "d/sum"]
    assert "WARNING" not in capsys.readouterr().err


def test_the_best_rank_of_all_searchers_counts(tmp_path: Path) -> None:
    searchers = {"bm25": found("d/q1", "d/sum", "d/max", "d/plot"), "dense": found("d/q1", "d/max", "d/sort", "d/plot")}
    out = cells(tmp_path, searchers, qrels=[judgement("d/q1", "d/cumsum")])
    [(*_, negative, _)] = triplets(out)
    assert negative in {"d/plot", "d/sort"}  # sum and max are first for one of the two


def test_a_document_judged_irrelevant_is_a_candidate_at_any_rank(tmp_path: Path) -> None:
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/q1", "d/max", 0)]
    assert triplets(cells(tmp_path, {"bm25": found("d/q1", "d/max")}, qrels=qrels)) == {
        ("d/q1", "d/cumsum", "d/max", "judged")
    }


def test_a_copy_of_a_positive_is_no_negative(tmp_path: Path) -> None:
    ranked = found("d/q1", "d/sum", "d/copy")
    out = cells(tmp_path, {"bm25": ranked}, qrels=[judgement("d/q1", "d/cumsum")])
    assert triplets(out) == set()
    report = read_json(out / "report.json")
    assert report["dropped_positives"]["judged"]["no_negative_left"] == 1
    assert report["refused_negatives"]["judged"]["candidate_is_a_positive"] == 1


def test_what_was_clicked_is_no_negative_of_judgements_and_the_other_way_round(tmp_path: Path) -> None:
    log = [
        impression("d/q1", "d/sum", True),
        impression("d/q1", "d/cumsum", False, rank=2),
        impression("d/q1", "d/plot", False, rank=3),
    ]
    ranked = found("d/q1", "d/max", "d/sum", "d/sort")
    out = cells(tmp_path, {"bm25": ranked}, qrels=[judgement("d/q1", "d/cumsum")], log=log)
    assert triplets(out) == {("d/q1", "d/sum", "d/plot", "click_one_hop"), ("d/q1", "d/cumsum", "d/sort", "judged")}


def test_what_is_relevant_to_a_query_of_the_same_text_is_no_negative(tmp_path: Path) -> None:
    twins = [*QUERIES, query("d/twin", "Cumulative sum, of elements?")]
    ranked = [*found("d/q1", "d/max", "d/sum", "d/plot"), *found("d/twin", "d/max", "d/cumsum", "d/plot")]
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/twin", "d/sum")]
    given = [{"query_id": "d/q1", "positive_id": "d/cumsum", "negative_id": "d/sum"}]
    assert triplets(cells(tmp_path, {"bm25": ranked}, queries=twins, qrels=qrels, given=given)) == {
        ("d/q1", "d/cumsum", "d/plot", "judged"),
        ("d/twin", "d/sum", "d/plot", "judged"),
    }


def test_judgements_and_candidates_of_other_splits_train_nothing(tmp_path: Path) -> None:
    qrels = [judgement("d/dev", "d/cumsum", split="dev"), judgement("d/q1", "d/cumsum")]
    searched = [*found("d/dev", "d/max", "d/sum"), *found("d/q1", "d/max", "d/sum")]
    assert {row[0] for row in triplets(cells(tmp_path, {"bm25": searched}, qrels=qrels))} == {"d/q1"}


def test_given_triplets_stay_but_for_negatives_that_are_relevant(tmp_path: Path) -> None:
    given = [
        {"query_id": "d/q1", "positive_id": "d/sum", "negative_id": "d/plot"},
        {"query_id": "d/q1", "positive_id": "d/sum", "negative_id": "d/copy"},  # has the text of a judged document
        {"query_id": "d/dev", "positive_id": "d/sum", "negative_id": "d/plot"},
    ]
    out = cells(tmp_path, {"bm25": []}, qrels=[judgement("d/q1", "d/cumsum")], given=given)
    assert triplets(out) == {("d/q1", "d/sum", "d/plot", "given")}
    report = read_json(out / "report.json")
    assert report["rows"]["given"] == 1
    assert report["dropped_positives"]["given"] == {"negative_is_relevant_or_document_unknown": 1}


def test_the_positive_of_a_given_triplet_is_nobodys_negative(tmp_path: Path) -> None:
    given = [{"query_id": "d/q1", "positive_id": "d/sum", "negative_id": "d/plot"}]
    log = [impression("d/q1", "d/max", True), impression("d/q1", "d/sum", False, rank=2)]
    ranked = found("d/q1", "d/sort", "d/sum")
    out = cells(tmp_path, {"bm25": ranked}, qrels=[judgement("d/q1", "d/cumsum")], given=given, log=log)
    assert triplets(out) == {("d/q1", "d/sum", "d/plot", "given")}


def test_a_rankers_scores_count_where_the_user_gave_none(tmp_path: Path) -> None:
    out = cells(tmp_path, {"bm25": []}, qrels=[judgement("d/q1", "d/cumsum")])
    names = ("cumsum", "sum", "sort", "max", "plot")
    scores = [
        {"query_id": name, "doc_id": f"d/{doc}", "score": -float(at)}
        for name in ("d/q2", "d/dev")
        for at, doc in enumerate(names)
    ]
    ranked = write_found(tmp_path / "rank", "relevance", cross=scores)
    mined = mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance", ranked)
    [(asked, positive, negative, source)] = triplets(mined)
    assert (asked, positive, source) == ("d/q2", "d/cumsum", "relevance_one_hop")
    assert negative in {"d/sort", "d/max", "d/plot"}  # relevance_skip is 2

    own = [{"query_id": "d/q1", "doc_id": f"d/{doc}", "score": -float(at)} for at, doc in enumerate(names)]
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], own)
    again = mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance", ranked)
    assert {row[0] for row in triplets(again)} == {"d/q1"}


def test_judged_triplets_lose_no_more_than_negatives_that_a_ranker_finds_best(tmp_path: Path) -> None:
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/q2", "d/sort")]
    searched = [*found("d/q1", "d/max", "d/sum"), *found("d/q2", "d/max", "d/plot")]
    out = cells(tmp_path, {"bm25": searched}, qrels=qrels)
    assert triplets(out) == {("d/q1", "d/cumsum", "d/sum", "judged"), ("d/q2", "d/sort", "d/plot", "judged")}
    orders = {"d/q1": ("sum", "cumsum", "max"), "d/q2": ("sort", "plot", "max")}  # relevance_skip is 2
    scores = [
        {"query_id": asked, "doc_id": f"d/{doc}", "score": -float(at)}
        for asked, order in orders.items()
        for at, doc in enumerate(order)
    ]
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], scores, qrels)
    kept = triplets(mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance"))
    assert {row for row in kept if row[3] == "judged"} == {("d/q2", "d/sort", "d/plot", "judged")}


def test_a_leak_stops_the_cell(tmp_path: Path) -> None:
    queries = [*QUERIES, query("d/twin", "Sort a list, in place!", "test")]
    ingest = write_log(tmp_path / "ingest", queries, DOCUMENTS, [], qrels=[judgement("d/q2", "d/sort")])
    searched = write_found(tmp_path / "candidates", "candidates", bm25=found("d/q2", "d/max", "d/plot"))
    clicks = mine(ingest, tmp_path / "click")
    with pytest.raises(UserError, match="'sort a list in place' is d/twin"):
        mine_judged(ingest, searched, clicks, tmp_path / "judged")


def test_without_judgements_all_is_passed_on(tmp_path: Path) -> None:
    log = [impression("d/q1", "d/sum", True), impression("d/q1", "d/plot", False, rank=2)]
    out = cells(tmp_path, {"bm25": found("d/q1", "d/max", "d/sum")}, log=log)
    for name in ("triplets.parquet", "associations.parquet"):
        assert (out / name).read_bytes() == (tmp_path / "click" / name).read_bytes()
    assert read_json(out / "report.json")["rows"] == {"click_one_hop": 1, "click_multi_hop": 0, "judged": 0, "given": 0}


def test_what_people_called_irrelevant_is_no_positive_however_it_scores(tmp_path: Path) -> None:
    qrels = [judgement("d/q1", "d/cumsum"), judgement("d/q1", "d/sum", 0)]
    given = [{"query_id": "d/q2", "positive_id": "d/sort", "negative_id": "d/plot"}]
    out = cells(tmp_path, {"bm25": []}, qrels=qrels, given=given)
    before = {("d/q1", "d/cumsum", "d/sum", "judged"), ("d/q2", "d/sort", "d/plot", "given")}
    assert triplets(out) == before
    orders = {"d/q1": ("sum", "cumsum", "max", "plot"), "d/q2": ("plot", "sort", "max", "sum")}
    scores = [
        {"query_id": asked, "doc_id": f"d/{doc}", "score": -float(at)}
        for asked, order in orders.items()
        for at, doc in enumerate(order)
    ]
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], scores, qrels, given)
    assert triplets(mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance")) == before


def test_a_score_of_a_dev_query_alone_turns_no_ranker_off(tmp_path: Path) -> None:
    out = cells(tmp_path, {"bm25": []}, qrels=[judgement("d/q1", "d/cumsum")])
    scores = [{"query_id": "d/q2", "doc_id": f"d/{doc}", "score": -float(at)} for at, doc in enumerate(CONTENTS)]
    ranked = write_found(tmp_path / "rank", "relevance", cross=scores)
    write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, [], [{"query_id": "d/dev", "doc_id": "d/max", "score": 1.0}])
    mined = mine_relevance(tmp_path / "ingest", out, tmp_path / "relevance", ranked)
    assert {row[0] for row in triplets(mined)} == {"d/q2"}
