"""User Behavior Insights logs: searches joined with their events, hits or impression events, the window, bad rows."""

import json
import re
from pathlib import Path
from typing import Any

import mine_logs
import pytest
from ingest_logs import (
    DAY,
    FIRST,
    ROOT,
    corpus,
    from_recipe,
    ingest,
    params,
    reasons,
    rows_of,
    texts_by_split,
    write,
)  # fmt: skip

from bench.ubi_log import write_log
from slimtower.common.errors import UserError
from slimtower.common.files import read_json


def moment(day: float) -> str:
    at = int(FIRST + day * DAY)
    return f"2026-01-{1 + (at - FIRST) // DAY:02}T{at % DAY // 3600:02}:{at % 3600 // 60:02}:{at % 60:02}.250Z"


def search(query_id: str, text: str, day: float, hits: list[str] | None = None) -> dict[str, Any]:
    row = {"application": "shop", "query_id": query_id, "client_id": "c1", "user_query": text, "timestamp": moment(day)}
    return row | ({"query_response_hit_ids": hits} if hits is not None else {})


def event(action: str, query_id: str, doc: Any, day: float, ordinal: Any = None) -> dict[str, Any]:
    attributes: dict[str, Any] = {"object": {"object_id": doc, "object_id_field": "sku"}}
    if ordinal is not None:
        attributes["position"] = {"ordinal": ordinal}
    common = {"action_name": action, "query_id": query_id, "session_id": "v1", "timestamp": moment(day)}
    return common | {"event_attributes": attributes}


SEARCHES = [
    search("one", "red shoes", 0, ["d2", "d0", "d1"]),
    search("two", "Red Shoes", 1),
    search("three", "hat", 6, ["d3", "d4"]),
]
EVENTS = [
    event("click", "one", "d0", 0.001, 2), event("click", "one", "d0", 0.002, 2),
    event("impression", "two", "d4", 1, 2), event("view", "two", "d5", 1, 1),
    event("impression", "two", "d4", 1.001, 7), event("click", "two", "d4", 1.002, 2),
    event("click", "three", "d3", 6.001, 1),
]  # fmt: skip


def ubi(folder: Path, searches: list[Any], events: list[Any], **changes: Any) -> dict[str, Any]:
    source = {
        "name": "shop", "kind": "ubi", "corpus": str(corpus(folder)),
        "queries": str(write(folder / "queries" / "q.jsonl", searches)),
        "events": str(write(folder / "events" / "e.jsonl", events)), "test_from": "2026-01-06",
        "validation_fraction": 0.0,
    }  # fmt: skip
    return source | changes


def impressions(out: Path) -> list[Any]:
    return rows_of(out, "impressions", "session_id", "doc_id", "rank", "clicked")


EXPECTED = [
    ("shop/one", "shop/d2", 1, False), ("shop/one", "shop/d0", 2, True), ("shop/one", "shop/d1", 3, False),
    ("shop/two", "shop/d5", 1, False), ("shop/two", "shop/d4", 2, True), ("shop/three", "shop/d3", 1, True),
    ("shop/three", "shop/d4", 2, False),
]  # fmt: skip


def test_hits_or_else_impression_events_are_what_was_shown(tmp_path: Path) -> None:
    out = ingest(tmp_path, params(ubi(tmp_path, SEARCHES, EVENTS), max_reject_ratio=0.0))
    assert impressions(out) == EXPECTED
    assert texts_by_split(out) == {"train": ["red shoes"], "test": ["hat"]}
    assert rows_of(out, "impressions", "timestamp")[3] == FIRST + DAY  # of the search, not of the event
    assert rows_of(out, "qrels", "doc_id", "split") == [("shop/d3", "test")]


@pytest.mark.parametrize("form", ["hits and bulk", "nested columns", "JSON in columns"])
def test_exports_of_the_indexes_are_read(tmp_path: Path, form: str) -> None:
    hits = [{"_index": "ubi_queries", "_id": row["query_id"], "_source": row} for row in SEARCHES]
    bulk = [line for row in EVENTS for line in ({"index": {"_index": "ubi_events"}}, row)]
    source = ubi(tmp_path, hits, bulk)
    if "columns" in form:
        name = "event_attributes"
        events = EVENTS if "nested" in form else [row | {name: json.dumps(row[name])} for row in EVENTS]
        source["events"] = str(write(tmp_path / "e.parquet", events))
        source["queries"] = str(write(tmp_path / "q.parquet", SEARCHES))
    assert impressions(ingest(tmp_path, params(source, max_reject_ratio=0.0))) == EXPECTED


def test_bad_searches_and_events_are_rejects_of_their_line(tmp_path: Path) -> None:
    searches = [
        *SEARCHES,
        search("one", "again", 0, []),  # 4: delivered twice
        search("browse", " ", 0, ["d0"]),
        search("when", "a query", 0) | {"timestamp": "noon"},
        search("part", "coat", 0, ["d0", "gone", "d1"]),
        search("what", "a query", 0) | {"query_response_hit_ids": 7},
        {"user_query": "no id", "timestamp": moment(0)},
    ]
    events = [
        *EVENTS,
        event("click", "one", "d5", 0),  # 8: never shown by the hits
        event("click", "two", "d0", 1),  # nor by the events
        event("click", "nobody", "d0", 1),
        event("impression", "two", "d0", 1),  # 11: no ordinal
        event("impression", "two", "d0", 1, -1),
        event("click", "one", "gone", 0),
        event("click", "one", None, 0),
        event("click", "one", "d0", 0) | {"timestamp": "noon"},
        event("click", "one", "d0", 0) | {"event_attributes": None},  # 16
        event("click", "browse", "d0", 0),  # of a search left out: counted
        event("login", "one", "d0", 0),
        {"action_name": "click", "timestamp": moment(0)},
        *EVENTS[:2] * 2,
    ]
    out = ingest(tmp_path, params(ubi(tmp_path, searches, events)))
    by_file = {"shop/queries/q.jsonl": {}, "shop/events/e.jsonl": {}}
    for name, line, reason in reasons(out):
        by_file[name][line] = reason
    assert by_file["shop/queries/q.jsonl"] == {
        4: "duplicate_id", 5: "empty_text", 6: "bad_timestamp", 7: "unknown_document", 8: "wrong_type",
        9: "missing_field",
    }  # fmt: skip
    assert by_file["shop/events/e.jsonl"] == {
        8: "click_without_impression", 9: "click_without_impression", 10: "click_without_impression",
        11: "missing_field", 12: "bad_rank", 13: "unknown_document", 14: "missing_field", 15: "bad_timestamp",
        16: "missing_field",
    }  # fmt: skip
    part = [row[1:] for row in impressions(out) if row[0] == "shop/part"]
    assert part == [("shop/d0", 1, False), ("shop/d1", 3, False)]  # the others keep their ranks
    facts = read_json(out / "report.json")["datasets"]["shop"]
    assert facts["events_left_out"]["of_unusable_searches"] == 1
    assert facts["events_left_out"]["not_of_a_search"] == 2
    with pytest.raises(UserError, match=r"e\.jsonl: 3 of 23 rows cannot be used.*missing_field 3"):
        ingest(tmp_path, params(ubi(tmp_path, SEARCHES, events), max_reject_ratio=0.1))


def test_what_an_earlier_search_shows_from_test_from_on_is_left_out(tmp_path: Path) -> None:
    searches = [*SEARCHES, search("one", "red shoes", 5, ["d5"]), search("four", "hat", 6, ["d0"])]
    events = [*EVENTS, event("click", "one", "d5", 5.5), event("impression", "two", "d0", 7, 3)]
    events += [event("click", "one", "d0", 8), event("click", "two", "d5", 8)]  # the first was clicked before, too
    out = ingest(tmp_path, params(ubi(tmp_path, searches, events)))
    assert impressions(out) == [*(row for row in EXPECTED if row[1] != "shop/d5"), ("shop/four", "shop/d0", 1, False)]
    facts = read_json(out / "report.json")["datasets"]["shop"]
    assert facts["events_left_out"]["clicks_after_test_from"] == 3
    assert facts["events_left_out"]["impressions_after_test_from"] == 1
    assert facts["impressions_left_out"]["after_test_from"] == 2
    assert reasons(out) == []


def test_a_small_file_of_browsing_alone_among_others_is_read(tmp_path: Path) -> None:
    """Its producer leaves empty fields out."""
    source = ubi(tmp_path, SEARCHES, EVENTS) | {"queries": str(tmp_path / "queries")}
    browsing = [{"query_id": "seen", "timestamp": moment(0), "client_id": "c"}]
    write(tmp_path / "queries/dt=2026-01-03/part.jsonl", SEARCHES)
    write(tmp_path / "queries/dt=2026-01-02/part.jsonl", browsing)
    assert impressions(ingest(tmp_path, params(source))) == EXPECTED
    for name in ("dt=2026-01-03/part", "dt=2026-01-02/part", "q"):
        write(tmp_path / f"queries/{name}.jsonl", browsing)
    with pytest.raises(UserError, match=r"dt=2026-01-02/part\.jsonl: line 1: no column 'user_query'"):
        ingest(tmp_path, params(source))


def test_a_log_most_of_whose_searches_or_clicks_are_of_another_corpus_is_refused(tmp_path: Path) -> None:
    foreign = [search(f"of others {at}", "tie", 0, ["no", "none"]) for at in range(4)]
    with pytest.raises(UserError, match=r"q\.jsonl: 4 of 7 rows are about documents or searches .*unknown_document"):
        ingest(tmp_path, params(ubi(tmp_path, [*SEARCHES, *foreign], EVENTS), max_reject_ratio=0.0))
    strangers = [event("click", f"lost {at}", "d0", 1) for at in range(len(EVENTS) + 1)]
    with pytest.raises(UserError, match=r"e\.jsonl: 8 of 15 rows .*click_without_impression"):
        ingest(tmp_path, params(ubi(tmp_path, SEARCHES, [*EVENTS, *strangers]), max_reject_ratio=0.0))


def test_a_click_after_midnight_on_a_search_of_the_partition_before_the_window_is_counted(tmp_path: Path) -> None:
    source = ubi(tmp_path, SEARCHES, EVENTS) | {name: str(tmp_path / name) for name in ("queries", "events")}
    for path in ("queries/q.jsonl", "events/e.jsonl"):
        (tmp_path / path).unlink()
    for day, searches in ((4, [search("late", "hat", 3.999, ["d0"])]), (5, [search("own", "coat", 4.5, ["d1"])])):
        write(tmp_path / "queries" / f"dt=2026-01-0{day}" / "q.jsonl", searches)
    write(tmp_path / "queries" / "dt=2026-01-07" / "q.jsonl", [search("test", "tie", 6, ["d2"])])
    events = [
        event("click", "late", "d0", 4.001),
        event("impression", "late", "d0", 4.001, 1),
        event("click", "own", "d1", 4.51),
        event("click", "test", "d2", 6.01),
    ]
    write(tmp_path / "events" / "dt=2026-01-05" / "e.jsonl", events)
    out = ingest(tmp_path, params(source, since="2026-01-05", max_reject_ratio=0.0))
    assert reasons(out) == []
    assert read_json(out / "report.json")["datasets"]["shop"]["events_left_out"]["unknown_search"] == 2
    write(tmp_path / "events" / "dt=2026-01-06" / "e.jsonl", [event("click", "nobody", "d0", 5.001)])
    out = ingest(tmp_path, params(source, since="2026-01-05"))
    assert reasons(out) == [("shop/events/dt=2026-01-06/e.jsonl", 1, "click_without_impression")]


def test_further_responses_to_a_search_continue_its_ranks(tmp_path: Path) -> None:
    def page(response: str, hits: list[str]) -> dict[str, Any]:
        return search("paged", "coat", 0, hits) | {"query_response_id": response}

    pages = [page("r1", ["d0", "gone", "d1"]), *SEARCHES, page("r2", ["d1", "d5"]), page("r2", ["d4"])]
    events = [*EVENTS, event("click", "paged", "d5", 0.1)]
    out = ingest(tmp_path, params(ubi(tmp_path, pages, events)))
    assert impressions(out)[:3] == [
        ("shop/paged", "shop/d0", 1, False),
        ("shop/paged", "shop/d1", 3, False),
        ("shop/paged", "shop/d5", 5, True),
    ]
    assert impressions(out)[3:] == EXPECTED
    assert [row[1:] for row in reasons(out)] == [(1, "unknown_document"), (6, "duplicate_id")]


def response(number: int, day: float, hits: list[str], query_id: str = "paged", **changes: Any) -> dict[str, Any]:
    return search(query_id, "coat", day, hits) | {"query_response_id": f"r{number}"} | changes


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("seconds", [60, 0.5])
def test_responses_to_a_search_are_in_the_order_of_their_times(tmp_path: Path, order: int, seconds: float) -> None:
    times = [f"2026-01-01T00:00:{at:09.6f}Z" for at in (0.25, 0.25 + min(seconds, 59))]
    pages = [response(1, 0, ["d0", "d1"], timestamp=times[0]), response(2, 0, ["d2", "d0", "d3"], timestamp=times[1])]
    source = ubi(tmp_path, [*pages, *SEARCHES][::order], EVENTS)
    rows = impressions(ingest(tmp_path, params(source)))
    ranks = [("d0", 1), ("d1", 2), ("d2", 3), ("d3", 5)]
    assert [row[1:3] for row in rows if row[0] == "shop/paged"] == [(f"shop/{doc}", rank) for doc, rank in ranks]
    assert sorted(row for row in rows if row[0] != "shop/paged") == sorted(EXPECTED)
    assert rows_of(tmp_path / "out", "impressions", "timestamp").count(FIRST) == 3 + 4  # of the first response


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_response_to_a_search_says_whether_it_lies_in_the_window(tmp_path: Path, order: int) -> None:
    responses = [
        response(1, 0.99, ["d0"], "early", user_query="asked before"),
        response(2, 1.01, ["d1"], "early", user_query="asked before"),
        response(1, 6.99, ["d2"], "late"),
        response(2, 7.01, ["d3"], "late"),
        response(1, 7.5, ["d4", "d5"], "after"),
    ]
    events = [*EVENTS[2:], event("click", "late", "d2", 6.995)]
    source = ubi(tmp_path, [*responses, *SEARCHES[1:]][::order], events)
    out = ingest(tmp_path, params(source, since="2026-01-02", until="2026-01-08"))
    assert [row for row in impressions(out) if row[0] == "shop/late"] == [("shop/late", "shop/d2", 1, True)]
    assert not {"shop/early", "shop/after"} & {row[0] for row in impressions(out)}
    assert "asked before" not in rows_of(out, "queries", "text")
    facts = read_json(out / "report.json")["datasets"]["shop"]
    assert facts["searches_left_out"] == {"outside_window": 2, "unusable": 0}
    assert facts["impressions_left_out"]["outside_window"] == 2 + 1 + 2


@pytest.mark.parametrize("order", [1, -1])
def test_responses_without_an_id_are_one_where_their_hits_are_and_else_go_on(tmp_path: Path, order: int) -> None:
    rows = [
        search("twice", "coat", 0, ["d0", "d1"]),
        search("twice", "coat", 0.1, ["d2"]),  # its next page
        search("twice", "coat", 0.2, ["d0", "d1"]),  # delivered again
        search("asked", "coat", 0),  # by the client, and then by the engine
        search("asked", "coat", 0.1, ["d3"]),
    ]
    events = [*EVENTS, event("click", "twice", "d2", 0.1), event("click", "asked", "d3", 0.1)]
    results = impressions(ingest(tmp_path, params(ubi(tmp_path, [*SEARCHES, *rows][::order], events))))
    clicks = [("d0", 1, False), ("d1", 2, False), ("d2", 3, True)]
    assert [row[1:] for row in results if row[0] == "shop/twice"] == [(f"shop/{doc}", *rest) for doc, *rest in clicks]
    assert [row[1:] for row in results if row[0] == "shop/asked"] == [("shop/d3", 1, True)]
    assert [row[2] for row in reasons(tmp_path / "out")] == ["duplicate_id"]


def test_a_click_soon_after_the_window_is_on_a_search_inside(tmp_path: Path) -> None:
    source = ubi(tmp_path, SEARCHES, EVENTS) | {name: str(tmp_path / name) for name in ("queries", "events")}
    late = [search("late", "coat", 6.999, ["d0", "d1"]), search("next", "coat", 7.0, ["d0"]), search("bare", "coat", 6)]
    write(tmp_path / "queries" / "q.jsonl", [*SEARCHES, *late])
    events = [event("click", query_id, "d0", 7.001) for query_id in ("late", "next", "of the next day")]
    write(tmp_path / "events" / "dt=2026-01-08" / "e.jsonl", [*events, event("impression", "bare", "d0", 7.001, 9)])
    write(tmp_path / "events" / "dt=2026-01-09" / "e.jsonl", [event("click", "late", "d1", 8)])
    out = ingest(tmp_path, params(source, until="2026-01-08", max_reject_ratio=0.0))
    assert [row[1:] for row in impressions(out) if row[0] == "shop/late"] == [
        ("shop/d0", 1, True), ("shop/d1", 2, False),
    ]  # fmt: skip
    assert ("shop/bare", "shop/d0", 9, False) in impressions(out)
    assert reasons(out) == []
    assert read_json(out / "report.json")["datasets"]["shop"]["events_left_out"]["outside_window"] == 2


@pytest.mark.faults("robots")
def test_searches_without_a_client_are_nobodys(tmp_path: Path) -> None:
    """Those of all clients that were not told apart are not one robot's."""
    rows = [search(f"s{n}", "red shoes", 0, ["d0", "d1"]) for n in range(600)] + [search("late", "hat", 6, ["d0"])]
    for changes in ({"client_id": None}, {"client_id": ""}):
        source = ubi(tmp_path, [row | changes for row in rows], [event("click", "late", "d0", 6)])
        assert len(impressions(ingest(tmp_path, params(source)))) == 1201
    clicks = [event("click", "late", "d0", 6)]
    assert len(impressions(ingest(tmp_path, params(ubi(tmp_path, rows, clicks))))) == 1


def test_the_example_log_is_read_without_a_reject_and_called_simulated(tmp_path: Path) -> None:
    queries, documents, log_rows = mine_logs.random_log(1, datasets=1, queries=60)
    log = tmp_path / "log"
    counts = write_log(log, mine_logs.write_log(tmp_path / "demo", queries, documents, log_rows))
    assert counts["searches"] == len({(row["session_id"], row["query_id"]) for row in log_rows})
    assert len(list((log / "queries").iterdir())) > 2
    changes = {"test_from": "2025-01-09", "validation_fraction": 0.1, "simulated": True}
    out = ingest(tmp_path, params(from_recipe(log) | changes, max_reject_ratio=0.0))
    assert reasons(out) == []
    report = read_json(out / "report.json")
    entry = report["datasets"]["log"]
    assert report["simulated"] is entry["sessions"]["simulated"] is True
    assert entry["sessions"]["impressions"] + sum(entry["impressions_left_out"].values()) == len(log_rows)
    assert set(texts_by_split(out)) == {"train", "dev", "test"}


def test_the_rows_of_the_page_are_a_search_and_its_click(tmp_path: Path) -> None:
    search, click = (
        json.loads(block)
        for block in re.findall(r"```json\n(.*?)```", (ROOT / "docs/data.md").read_text("utf-8"), re.S)
    )
    log = tmp_path / "log"
    documents = [{"doc_id": hit, "title": hit, "content": hit} for hit in search["query_response_hit_ids"]]
    write(log / "corpus.jsonl", documents)
    write(log / "queries/q.jsonl", [search])
    write(log / "events/e.jsonl", [click])
    out = ingest(tmp_path, params(from_recipe(log)))
    assert rows_of(out, "queries", "text") == [search["user_query"]]
    clicked = [(doc.partition("/")[2], click) for doc, click in rows_of(out, "impressions", "doc_id", "clicked")]
    assert clicked == [("numpy.histogram", True), ("numpy.bincount", False)]
    assert not reasons(out)
