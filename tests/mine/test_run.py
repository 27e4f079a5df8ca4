"""The stage as a whole: what it writes, what it refuses, and that it writes the same bytes again."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mine_logs import (
    document,
    engine_in,
    engine_table,
    hits,
    impression,
    judgement,
    mine,
    mine_judged,
    mine_relevance,
    query,
    random_log,
    write_found,
    write_log,
)
from rows import row as row_of

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import read_json
from steps.core.tables import read_table
from steps.mine import from_clicks, from_relevance
from steps.mine.cell import audit

pytestmark = pytest.mark.medium

QUERIES = [
    query("d/q1", "cumulative sum of elements"),
    query("d/q2", "the cumulative sum along an axis of elements"),
    query("d/q3", "sort a list in place"),
    query("d/test", "running total", "test"),
]
DOCUMENTS = [document(f"d/{name}", f"Text about {name}.") for name in ("cumsum", "sum", "sort", "max")]
LOG = [
    impression("d/q2", "d/cumsum", True), impression("d/q2", "d/sum", False, rank=2),
    impression("d/q3", "d/sort", True, session=1), impression("d/q3", "d/max", False, session=1, rank=2),
    impression("d/test", "d/cumsum", True, session=2), impression("d/test", "d/sum", False, session=2, rank=2),
]  # fmt: skip


def test_writes_triplets_of_both_hops_and_says_why(tmp_path: Path) -> None:
    out = mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, LOG), tmp_path / "mine", click_threshold=0.05)
    names = ["associations.parquet", "report.json", "report.md", "triplets.parquet"]
    assert sorted(path.name for path in out.iterdir()) == names
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
    deciding = {row["term"] for row in report["associating_terms"]}
    assert len(deciding) == 2
    assert deciding < {"cumulative", "sum", "elements"}  # equally rare: the key decides
    hop = next(sample for sample in report["samples"] if sample["source"] == "click_multi_hop")
    assert hop["query"]["text"] == "cumulative sum of elements"
    assert hop["via_query"]["text"] == "the cumulative sum along an axis of elements"
    assert hop["positive"]["content"] == "Text about cumsum."
    assert all(f"{term} 0." in hop["why"] for term in deciding)


def test_same_rows_in_any_order_give_the_same_bytes(tmp_path: Path) -> None:
    tables = random_log(seed=1)
    first = mine(write_log(tmp_path / "a", *tables), tmp_path / "out_a")
    for rows in tables:
        random.Random(2).shuffle(rows)
    second = mine(write_log(tmp_path / "b", *tables), tmp_path / "out_b")
    names = sorted(path.name for path in first.iterdir())
    assert read_table(first, "triplets").num_rows > 50
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


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


@pytest.mark.parametrize(
    ("template", "negatives"),
    [
        ("{title}. {content}", {"d/hat"}),  # a short content is told apart by the title that is read, never a long one
        ("{content}", set()),
        ("{title} {topic} {content}", {"d/hat", "d/topic"}),
    ],
)
def test_products_of_one_short_content_are_told_apart_by_what_the_template_reads(
    template: str, negatives: set[str], tmp_path: Path
) -> None:
    long = "the same seven words of a long text"
    goods = [("d/shoe", "<b>red</b> *shoe*", "shoes"), ("d/hat", "blue hat", "shoes")]
    goods += [("d/topic", "<b>red</b> *shoe*", "dresses"), ("d/twin", "<b>red</b> *shoe*", "shoes")]
    documents = [document(doc_id, "In stock.", title) | {"topic": topic} for doc_id, title, topic in goods]
    documents += [document("d/copy", long, "Copy A"), document("d/other", long, "Copy B") | {"topic": "offers"}]
    log = [impression("d/q1", doc_id, doc_id == "d/shoe", rank=rank) for rank, (doc_id, *_) in enumerate(goods, 1)]
    log += [impression("d/q3", "d/copy", True, session=1), impression("d/q3", "d/other", False, session=1, rank=2)]
    log += [impression("d/q3", "d/gone", False), impression("d/gone", "d/hat", True)]  # ids that nobody knows
    ingest = write_log(tmp_path / "ingest", QUERIES, documents, log, template=template)
    out = mine(ingest, tmp_path / "mine", click_threshold=0.9, negatives_per_positive=9)
    rows = read_table(out, "triplets").to_pylist()
    assert {(row["query_id"], row["positive_id"]) for row in rows} <= {("d/q1", "d/shoe")}
    assert {row["negative_id"] for row in rows} == negatives
    dropped = read_json(out / "report.json")["impressions"]["dropped"]
    assert dropped == {"unknown_document": 1, "unlabelled_query": 1}
    if "{title}" in template:
        assert r"\<b\>red\</b\> \*shoe\*" in (out / "report.md").read_text(encoding="utf-8")


def test_an_empty_log_writes_empty_tables_and_says_so(tmp_path: Path) -> None:
    out = mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, []), tmp_path / "mine")
    assert read_table(out, "triplets").num_rows == read_table(out, "associations").num_rows == 0
    report = read_json(out / "report.json")
    assert "no impressions" in report["note"]
    assert report["rows"] == {"click_one_hop": 0, "click_multi_hop": 0}
    assert report["samples"] == []


def test_a_planted_leak_fails_the_stage_and_leaves_nothing(tmp_path: Path) -> None:
    queries = [*QUERIES, query("d/twin", "\uff33ort a list, in place!", "dev")]  # a full-width letter
    ingest = write_log(tmp_path / "ingest", queries, DOCUMENTS, LOG, qrels=[judgement("d/q3", "d/sort")])
    with pytest.raises(UserError, match="'sort a list in place' is d/twin"):
        mine(ingest, tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["ingest"]
    clicks = mine(write_log(tmp_path / "none", queries, DOCUMENTS, []), tmp_path / "click")
    searched = write_found(tmp_path / "candidates", "candidates", bm25=hits("d/q3", "d/max", "d/sum"))
    with pytest.raises(UserError, match="'sort a list in place' is d/twin"):
        mine_judged(ingest, searched, clicks, tmp_path / "judged")


def test_the_audit_refuses_an_evaluation_query_that_lends(tmp_path: Path) -> None:
    """Mining never offers one; the audit does not rely on that."""
    schema = {"query": pa.int64(), "text_key": pa.int64()} | dict.fromkeys(("query_id", "split", "text"), pa.string())
    rows = [(1, 11, "d/a", "train", "a"), (2, 12, "d/b", "train", "b"), (3, 13, "d/t", "test", "t")]
    rows += [(4, 14, "d/p", "pool", "p")]
    with engine_in(tmp_path) as engine:
        queries = engine_table(engine, schema, rows)
        assert audit(engine, engine_table(engine, {"query": pa.int64()}, [(1,), (2,)]), queries, "x")["leaks"] == 0
        with pytest.raises(UserError, match=r"leak: 1 of 2 training texts equal .*x: 't' is d/t"):
            audit(engine, engine_table(engine, {"query": pa.int64()}, [(1,), (3,)]), queries, "x")
        with pytest.raises(UserError, match=r"of the split 'pool' trains"):
            audit(engine, engine_table(engine, {"query": pa.int64()}, [(4,)]), queries, "x")


def test_training_after_the_first_test_query_is_refused(tmp_path: Path) -> None:
    log = [*LOG, impression("d/q3", "d/max", False, session=3)]  # the test query's session is number 2
    with pytest.raises(UserError, match="the past would be tested with the future"):
        mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, log), tmp_path / "mine")


def test_relevance_adds_its_sources_and_takes_back_wrong_negatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_relevance, "RELEVANCE_DEPTH", 6)
    monkeypatch.setattr(from_relevance, "RELEVANCE_TOP_TERMS", 2)
    documents = [*DOCUMENTS, *(document(f"d/x{n}", f"Filler number {n}.") for n in range(8))]
    scores = [("d/q1", "d/sum", 9.0), *(("d/q1", f"d/x{n}", 5.0 - n) for n in range(8))]
    scores += [("d/q3", "d/max", 3.0), ("d/test", "d/sum", 1.0)]
    relevance = [{"query_id": q, "doc_id": d, "score": score} for q, d, score in scores]
    ingest = write_log(tmp_path / "ingest", QUERIES, documents, LOG, relevance)
    clicks = mine(ingest, tmp_path / "click", click_threshold=0.05)
    out = mine_relevance(ingest, clicks, tmp_path / "relevance", click_threshold=0.05)

    rows = read_table(out, "triplets").to_pylist()
    relevance_rows = [row for row in rows if row["source"] == "relevance_one_hop"]
    assert [(row["query_id"], row["positive_id"]) for row in relevance_rows] == [("d/q1", "d/sum")]
    # ranks 1 and 2 are skipped, ranks 3 to 6 are x1 to x4: the best document is rank 1
    assert relevance_rows[0]["negative_id"] in {"d/x1", "d/x2", "d/x3", "d/x4"}
    # q1 borrowed the click triplet <cumsum, sum> from q2, but by relevance sum answers q1
    assert ("d/q1", "d/sum") not in {(row["query_id"], row["negative_id"]) for row in rows}
    assert ("d/q2", "d/cumsum", "d/sum") in {(row["query_id"], row["positive_id"], row["negative_id"]) for row in rows}
    # max is q3's best document by relevance, so it is no hard negative of it either; q3 itself has no candidates
    assert not any(row["query_id"] == "d/q3" for row in rows)
    report = read_json(out / "report.json")
    assert report["rows"] == {
        "click_one_hop": 1, "click_multi_hop": 0, "relevance_one_hop": 1, "relevance_multi_hop": 0,
    }  # fmt: skip
    assert report["dropped_positives"]["earlier_triplets"] == {"negative_is_relevant": 2}
    assert report["queries"]["in_triplets"] == 2  # q2 by clicks, q1 by relevance
    assert report["scores"] == {"read": 11, "dropped": {"test_query": 1}}
    sample = next(row for row in report["samples"] if row["source"] == "relevance_one_hop")
    assert "the ranker scored the positive best (9)" in sample["why"]


def test_what_scores_as_high_as_what_is_skipped_is_no_negative_and_relevance_is_shared_both_ways(
    tmp_path: Path,
) -> None:
    documents = [document(f"d/{n:02}", " ".join(f"word{n}of{at}" for at in range(8))) for n in range(12)]
    documents += [document(f"e/{who}{n}", f"Words of {who}, {n}.", dataset="e") for who in "ab" for n in range(6)]
    scores = {"d/ties": [3.0] * 5 + [1.0], "d/edge": [5.0, *[3.0] * 4, 2.0], "d/flat": [0.25] * 12}
    queries = [query(name, f"what {name[2:]} is") for name in scores]
    texts = {"e/a": "merge two sorted lists", "e/b": "sorted lists: merge two"}
    queries += [query(name, text, dataset="e") for name, text in texts.items()]
    scored_pairs = [(name, f"d/{n:02}", score) for name, column in scores.items() for n, score in enumerate(column)]
    scored_pairs += [(name, f"{name}{n}", 1.0 / (1 + n)) for name in texts for n in range(6)]
    relevance = [row_of("relevance", *row) for row in scored_pairs]
    ingest = write_log(tmp_path / "ingest", queries, documents, [], relevance)
    out = mine_relevance(ingest, mine(ingest, tmp_path / "click"), tmp_path / "relevance")
    rows = read_table(out, "triplets").to_pylist()
    negatives = {row["query_id"]: row["negative_id"] for row in rows if row["query_id"] in scores}
    assert negatives == {"d/ties": "d/05", "d/edge": "d/05"}  # and a ranker that tells nothing apart teaches nothing
    hops = [row for row in rows if row["source"] == "relevance_multi_hop"]
    shared = {(row["query_id"], row["positive_id"], row["via_query_id"]) for row in hops}
    assert shared == {("e/a", "e/b0", "e/b"), ("e/b", "e/a0", "e/a")}
    kinds = [tuple(row.values()) for row in read_table(out, "associations").to_pylist()]
    assert {row for row in kinds if row[0] in texts} == {("e/a", "e/b", "relevance"), ("e/b", "e/a", "relevance")}
    assert "relevance multi hop" in (out / "report.md").read_text()


def test_debiasing_weighs_a_click_by_how_rarely_its_rank_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 is examined half as often as rank 1, so its clicks count twice as much."""
    queries = [query(f"d/q{n}", f"word{n} other{n}") for n in range(40)]
    documents = [document(f"d/{n}{side}", f"Text {n} {side}.") for n in range(40) for side in ("a", "b", "c")]
    log = []
    for n in range(40):
        for session in range(8):  # both documents answer; each is shown at both ranks
            order = ("a", "b") if session % 2 else ("b", "a")
            log.append(impression(f"d/q{n}", f"d/{n}{order[0]}", session % 4 < 3, session, 1))
            log.append(impression(f"d/q{n}", f"d/{n}{order[1]}", (session + n) % 8 < 3, session, 2))
            log.append(impression(f"d/q{n}", f"d/{n}c", False, session, 3))
            log.append(impression(f"d/q{n}", f"d/{n}c", False, session, 1 + session % 2))
    monkeypatch.setattr(from_clicks, "LAST_RANK", 2)
    ingest = write_log(tmp_path / "ingest", queries, documents, log)
    out = mine(ingest, tmp_path / "mine", debias={"method": "ipw"})
    report = read_json(out / "report.json")
    first, second = report["propensities"]["examination_by_rank"]
    assert first == 1.0
    assert 0.3 < second < 0.7
    weights = [row["weight"] for row in read_table(out, "triplets").to_pylist()]
    assert sum(weights) / len(weights) == pytest.approx(1.0, abs=1e-6)
    assert max(weights) > 1.1 * min(weights)


def test_a_log_that_shows_few_results_is_debiased_by_the_ranks_that_it_shows(tmp_path: Path) -> None:
    queries = [query(f"d/q{n}", f"word{n} other{n}") for n in range(20)]
    documents = [document(f"d/{n}{side}", f"Text {n} {side}.") for n in range(20) for side in "abc"]
    log = [
        impression(
            f"d/q{n}", f"d/{n}{'abcab'[session % 3 + rank]}", (session + rank) % (rank + 2) == 0, session, rank + 1
        )
        for n in range(20)
        for session in range(24)
        for rank in range(3)
    ]
    ingest = write_log(tmp_path / "ingest", queries, documents, log)
    report = read_json(mine(ingest, tmp_path / "mine", debias={"method": "ipw"}) / "report.json")
    assert report["propensities"]["examination_by_rank"] == pytest.approx([1.0, 2 / 3, 1 / 2], abs=0.01)


def test_what_the_projects_folder_is_called_is_no_column(tmp_path: Path) -> None:
    project = tmp_path / "run=5" / "split=time" / "dataset=clicks"
    out = mine(write_log(project / "ingest", QUERIES, DOCUMENTS, LOG), project / "mine", click_threshold=0.05)
    plain = mine(write_log(tmp_path / "ingest", QUERIES, DOCUMENTS, LOG), tmp_path / "mine", click_threshold=0.05)
    assert read_table(out, "triplets").to_pylist() == read_table(plain, "triplets").to_pylist() != []
    with engine_in(project) as engine:
        row = engine.scan(project / "ingest/queries.parquet").to_pyarrow().to_pylist()[0]
    assert row.keys() == {"query_id", "dataset", "text", "split"} and (row["dataset"], row["split"]) == ("d", "train")


def test_a_full_disk_is_not_taken_for_too_little_memory(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=r"full disk: .* free some space"), engine_in(tmp_path) as engine:
        connection: Any = engine.connection
        connection.raw_sql("SET memory_limit='20MB'; SET max_temp_directory_size='5MB'; SET threads=1")
        connection.raw_sql("CREATE TABLE t AS SELECT random() AS a, repeat('x', 100) AS b FROM range(1000000)")


def test_too_little_memory_is_told_with_the_knob_that_raises_it(tmp_path: Path) -> None:
    draw = random.Random(1)
    queries = [query(f"d/q{n}", " ".join(f"w{draw.randrange(300)}" for _ in range(4))) for n in range(30_000)]
    log = [impression(row["query_id"], "d/sum", True) for row in queries]
    ingest = write_log(tmp_path / "ingest", queries, DOCUMENTS, log)
    with pytest.raises(UserError, match=r"4MB of memory are too little; raise mine\.memory_limit"):
        mine(ingest, tmp_path / "click", memory_limit="4MB")
