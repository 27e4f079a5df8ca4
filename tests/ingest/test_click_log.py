"""Click logs: columns by map, bad rows, one query a text, splits by time, the window, and what may train."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ingest_logs import (
    COLUMNS,
    DAY,
    FIRST,
    click_log,
    impression,
    ingest,
    params,
    reasons,
    rows_of,
    texts_by_split,
    without,
)
from ingest_logs import write as write_rows
from pydantic import ValidationError

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.ingest import search_log
from steps.ingest.search_log import SearchLog, without_repeats

BASIC = [
    impression("red shoes", 0, "d0", clicked=True), impression("red shoes", 0, "d1", rank=2),
    impression("blue hat", 1, "d2"), impression("green coat", 6, "d3", clicked=True),
    impression("green coat", 6, "d4", rank=2),
]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["log.jsonl", "log.jsonl.gz", "log.csv", "log.csv.gz", "log.tsv", "log.tsv.gz", "log.parquet"]
)
def test_every_format_gives_the_same_tables(tmp_path: Path, name: str) -> None:
    out = ingest(tmp_path, params(click_log(tmp_path, BASIC, name)))
    assert texts_by_split(out) == {"train": ["blue hat", "red shoes"], "test": ["green coat"]}
    query_ids = dict(rows_of(out, "queries", "text", "query_id"))
    columns = ("session_id", "query_id", "doc_id", "rank", "clicked", "timestamp")
    assert rows_of(out, "impressions", *columns) == [
        ("log/s red shoes 0", query_ids["red shoes"], "log/d0", 1, True, FIRST),
        ("log/s red shoes 0", query_ids["red shoes"], "log/d1", 2, False, FIRST),
        ("log/s blue hat 1", query_ids["blue hat"], "log/d2", 1, False, FIRST + DAY),
        ("log/s green coat 6", query_ids["green coat"], "log/d3", 1, True, FIRST + 6 * DAY),
        ("log/s green coat 6", query_ids["green coat"], "log/d4", 2, False, FIRST + 6 * DAY),
    ]
    assert rows_of(out, "qrels", "query_id", "doc_id", "grade", "split") == [
        (query_ids["green coat"], "log/d3", 1, "test")
    ]
    assert reasons(out) == []
    report = read_json(out / "report.json")
    assert report["simulated"] is False
    assert report["datasets"]["log"]["judgements_from_clicks"] is True
    assert report["datasets"]["log"]["sessions"] == {"simulated": False, "sessions": 3, "impressions": 5, "clicks": 2}


@pytest.mark.parametrize(
    ("name", "where"),
    [("log.csv", "line 1"), ("log.tsv.gz", "line 1"), ("log.jsonl", "line 1"), ("log.parquet", "schema")],
)
def test_a_mapped_column_that_the_file_lacks_is_named_with_file_line_and_nearest(
    tmp_path: Path, name: str, where: str
) -> None:
    source = click_log(tmp_path, BASIC, name, columns=COLUMNS | {"rank": "poss"})
    with pytest.raises(UserError) as failure:
        ingest(tmp_path, params(source))
    message = str(failure.value)
    assert f"{name}: {where}: no column 'poss', which params.yaml: ingest.sources[0].columns.rank names" in message
    assert "did you mean 'pos'?" in message
    assert all(has in message for has in BASIC[0])


def test_a_file_beside_its_own_gz_is_refused(tmp_path: Path) -> None:
    source = click_log(tmp_path, BASIC, "days/log.jsonl") | {"path": str(tmp_path / "days")}
    for name in ("log.jsonl.gz", "log.JSONL.GZ"):
        archive = write_rows(tmp_path / "copy.jsonl.gz", BASIC).rename(tmp_path / "days" / name)
        with pytest.raises(UserError, match=rf"{name} lies beside log.jsonl; remove one of them"):
            ingest(tmp_path, params(source))
        archive.unlink()


def test_values_of_every_spelling_are_read_and_bad_ones_are_rejects_of_their_line(tmp_path: Path) -> None:
    good = [
        impression("a query", 0) | {"clk": "true", "ts": "2026-01-01T00:00:00Z"},
        impression("a query", 0) | {"clk": 1, "ts": (FIRST + 7) * 1000 + 999, "pos": "2"},
        impression("a query", 0) | {"clk": "0", "ts": "2026-01-01T01:00:00+01:00", "pos": 3.0},
        impression("a query", 0) | {"clk": False, "ts": "2026-01-02"},
        impression("test query", 6, clicked=True),
    ]
    bad = [
        impression("a query", 0, rank="x"),  # 6
        impression("a query", 0, rank=0),
        impression("a query", 0, rank=1.5),
        impression("a query", 0) | {"ts": "yesterday"},
        impression("a query", 0) | {"ts": -1},  # 10
        impression("a query", 0) | {"ts": None},
        impression("a query", 0, "nowhere"),
        impression("a query", 0, clicked="maybe"),
        impression("a query", 0, clicked=2),
        impression("?!", 0),  # 15
        impression("word " * 201, 0),
        impression("half a pair \ud800", 0),
        without(impression("a query", 0), ["doc"]),
        impression("a query", 0) | {"sid": ""},
    ]
    source = click_log(tmp_path, [*good, *bad])
    with Path(source["path"]).open("ab") as handle:
        handle.write(b'\n{"q": "caf\xe9"}\n[1]\n')
    out = ingest(tmp_path, params(source))
    assert rows_of(out, "impressions", "rank", "clicked", "timestamp")[:4] == [
        (1, True, FIRST), (2, True, FIRST + 7), (3, False, FIRST), (1, False, FIRST + DAY),
    ]  # fmt: skip
    expected = {
        6: "bad_rank", 7: "bad_rank", 8: "bad_rank", 9: "bad_timestamp", 10: "bad_timestamp", 11: "missing_field",
        12: "unknown_document", 13: "bad_clicked", 14: "bad_clicked", 15: "empty_text", 16: "query_too_long",
        17: "invalid_utf8", 18: "missing_field", 19: "bad_id", 21: "invalid_utf8", 22: "invalid_json",
    }  # fmt: skip
    assert reasons(out) == [("log/path/log.jsonl", line, reason) for line, reason in expected.items()]


def test_documents_that_left_the_corpus_stop_nothing_but_the_log_of_another_corpus_does(tmp_path: Path) -> None:
    rows = [impression("a query", 0), impression("test query", 6, clicked=True), impression("a query", 0, "nowhere")]
    assert len(reasons(ingest(tmp_path, params(click_log(tmp_path, rows), max_reject_ratio=0.0)))) == 1
    with pytest.raises(UserError, match=r"log\.jsonl: 4 of 6 rows are about documents .*nowhere"):
        ingest(tmp_path, params(click_log(tmp_path, [*rows, *[rows[-1]] * 3]), max_reject_ratio=0.0))


def test_one_text_is_one_query_named_as_it_was_first_and_without_ids_a_session_at_each_time(tmp_path: Path) -> None:
    rows = [
        impression("Red -- shoes", 2, clicked=True), impression("red shoes", 1, "d1"),
        impression("RED SHOES", 1, "d2", rank=2), impression("hat", 6, clicked=True), impression("coat", 1),
    ]  # fmt: skip
    out = ingest(tmp_path, params(click_log(tmp_path, rows, columns=without(COLUMNS, ["session_id"]))))
    assert texts_by_split(out) == {"train": ["RED SHOES", "coat"], "test": ["hat"]}  # the earliest, then the smallest
    assert len(set(rows_of(out, "impressions", "query_id"))) == 3
    sessions = rows_of(out, "impressions", "session_id")
    assert sessions[1] == sessions[2] and len(set(sessions)) == 4


def test_a_query_seen_before_test_from_is_train_and_its_later_impressions_do_not_train(tmp_path: Path) -> None:
    rows = [
        impression("old", 0, "d0", clicked=True),
        impression("old", 5, "d1", clicked=True),  # test_from itself is late
        impression("old", 4.9999, "d2"),
        impression("new", 5, "d3", clicked=True),
        impression("new", 7, "d4", clicked=True),
    ]
    out = ingest(tmp_path, params(click_log(tmp_path, rows)))
    assert texts_by_split(out) == {"train": ["old"], "test": ["new"]}
    assert rows_of(out, "impressions", "doc_id") == ["log/d0", "log/d2", "log/d3", "log/d4"]
    assert rows_of(out, "qrels", "doc_id", "split") == [("log/d3", "test"), ("log/d4", "test")]
    left_out = read_json(out / "report.json")["datasets"]["log"]["impressions_left_out"]
    assert left_out == {"after_test_from": 1, "outside_window": 0, "query_without_click": 0}


def test_dev_is_a_seeded_share_and_held_out_queries_without_click_are_left_out(tmp_path: Path) -> None:
    rows = [impression(f"query {n}", 0, clicked=n % 2 == 0) for n in range(40)]
    rows += [impression("clicked", 6, clicked=True), impression("ignored", 6)]
    source = click_log(tmp_path, rows, validation_fraction=0.5)

    def run(seed: int) -> dict[str, list[str]]:
        return texts_by_split(ingest(tmp_path, params(source, seed=seed)))

    first = run(3)
    assert len(first["train"]) == 20
    assert all(int(text.split()[1]) % 2 == 0 for text in first["dev"])
    assert first["test"] == ["clicked"]
    assert first == run(3) != run(4)
    out = ingest(tmp_path, params(source))
    facts = read_json(out / "report.json")["datasets"]["log"]
    assert facts["queries_left_out"] == {"dev_without_click": 20 - len(first["dev"]), "test_without_click": 1}
    assert facts["impressions_left_out"]["query_without_click"] == 21 - len(first["dev"])
    assert set(rows_of(out, "impressions", "query_id")) == set(rows_of(out, "queries", "query_id"))


def test_no_text_crosses_the_splits_of_two_logs(tmp_path: Path) -> None:
    first_source = click_log(
        tmp_path / "one", [impression("shared", 0, clicked=True), impression("x", 6, clicked=True)]
    )
    second_source = click_log(tmp_path / "two", [impression("Shared!", 6, clicked=True), impression("y", 0)]) | {
        "name": "two"
    }
    out = ingest(tmp_path, params(first_source, second_source))
    assert texts_by_split(out) == {"train": ["y"], "test": ["Shared!", "x"]}
    assert ("log/path/log.jsonl", 1, "evaluation_query_text") in reasons(out)
    assert len(rows_of(out, "impressions", "doc_id")) == 3
    assert read_json(out / "report.json")["datasets"]["log"]["impressions_of_left_out_queries"] == 1


def test_the_window_begins_at_since_and_ends_before_until(tmp_path: Path) -> None:
    rows = [impression(f"at {second}", second / DAY, clicked=True) for second in (3599, 3600, 7199, 7200)]
    source = click_log(tmp_path, rows, test_from="2026-01-01T01:30:00Z")
    out = ingest(tmp_path, params(source, since="2026-01-01T01:00:00", until="2026-01-01T02:00:00Z"))
    assert texts_by_split(out) == {"train": ["at 3600"], "test": ["at 7199"]}
    assert read_json(out / "report.json")["datasets"]["log"]["impressions_left_out"]["outside_window"] == 2


def test_partitions_outside_the_window_are_not_opened_and_inside_one_the_times_decide(tmp_path: Path) -> None:
    source = click_log(tmp_path, BASIC, "parts/dt=2026-01-01/a.jsonl")
    late = [
        impression("green coat", 6.5, clicked=True),
        impression("hat", 6),
        impression("in between", 3),
    ]  # a row of another day
    write_rows(tmp_path / "parts" / "dt=2026-01-07" / "a.jsonl", late)
    (tmp_path / "parts" / "dt=2026-01-09").mkdir()
    (tmp_path / "parts" / "dt=2026-01-09" / "a.jsonl").write_text("nothing that could be read")
    source |= {"path": str(tmp_path / "parts"), "test_from": "2026-01-07T12:00"}
    checked = params(source, since="2026-01-07", until="2026-01-09", max_reject_ratio=0.0)
    out = ingest(tmp_path, checked)
    assert texts_by_split(out) == {"train": ["hat"], "test": ["green coat"]}
    assert read_json(out / "report.json")["datasets"]["log"]["impressions_left_out"]["outside_window"] == 1


def test_a_quote_that_is_not_closed_costs_its_own_line(tmp_path: Path) -> None:
    source = click_log(tmp_path, BASIC, "log.csv")
    rows = [f"query {n},d0,1,0,{FIRST},s{n}" for n in range(200)]
    rows[10] = f'"query 10,d0,1,0,{FIRST},s10'  # line 12
    rows[90] = f'"query, 90",d0,1,0,{FIRST},s90'
    rows[120] = f'"two\nlines, well quoted",d0,1,0,{FIRST},s120'  # lines 122 and 123
    rows[150] = f'query 150,d0,1,0,{FIRST},"s150'  # 153
    rows += [f"test query,d0,1,1,{FIRST + 6 * DAY},s", "short,d0", f"long,d0,1,0,{FIRST},s,more"]  # from 203 on
    text = "\n".join(["q,doc,pos,clk,ts,sid", *rows]) + "\n"
    Path(source["path"]).write_bytes(text.encode() + f"caf\xe9,d0,1,0,{FIRST},s\n".encode("latin-1"))
    out = ingest(tmp_path, params(source))
    assert [row[1:] for row in reasons(out)] == [
        (12, "unclosed_quote"), (153, "unclosed_quote"), (204, "missing_field"), (205, "too_many_columns"),
        (206, "invalid_utf8"),
    ]  # fmt: skip
    train = texts_by_split(out)["train"]
    assert len(train) == 198
    assert {"query, 90", "two\nlines, well quoted"} <= set(train)
    with pytest.raises(UserError, match=r"5 of 204 rows cannot be used.*unclosed_quote 2; line 12: unclosed_quote"):
        ingest(tmp_path, params(source, max_reject_ratio=0.005))


def test_a_dev_query_that_spells_a_test_query_of_another_source_is_left_out(tmp_path: Path) -> None:
    rows = [impression(f"query {n}", 0, clicked=True) for n in range(10)]
    first_source = click_log(tmp_path / "one", [*rows, impression("x", 6, clicked=True)], validation_fraction=0.5)
    alone = texts_by_split(ingest(tmp_path, params(first_source)))
    spelled = alone["dev"][0]
    second_log = [impression("y", 0), impression(spelled.upper(), 6, clicked=True)]
    second_source = click_log(tmp_path / "two", second_log) | {"name": "two"}
    out = ingest(tmp_path, params(first_source, second_source))
    assert texts_by_split(out)["dev"] == alone["dev"][1:]
    assert [row[2] for row in reasons(out)] == ["test_query_text"]
    assert len(rows_of(out, "qrels", "split")) == len(alone["dev"]) - 1 + 2
    assert set(rows_of(out, "impressions", "query_id")) == set(rows_of(out, "queries", "query_id"))


def test_what_is_delivered_twice_counts_once_where_sessions_have_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    similar = [impression("red shoes", 0, "d0", clicked=False), impression("red shoes", 0, "d0", rank=2, clicked=True)]
    once, source = [*BASIC, *similar], click_log(tmp_path, [*BASIC[:2], *BASIC, *similar, *BASIC[2:4]])
    out = ingest(tmp_path, params(source))
    assert rows_of(out, "impressions", "doc_id", "rank") == [(f"log/{row['doc']}", row["pos"]) for row in once]
    assert read_json(out / "report.json")["datasets"]["log"]["impressions_left_out"]["repeated"] == 4
    assert "4 impressions that the log holds more than once" in capsys.readouterr().out
    nobody = source | {"columns": COLUMNS | {"session_id": ""}}  # two people may click the same at one moment
    assert len(rows_of(ingest(tmp_path / "3", params(nobody)), "impressions", "doc_id")) == len(once) + 4


def test_no_impression_is_taken_for_another_and_every_repetition_is_found() -> None:
    random = np.random.default_rng(5)
    log = SearchLog()
    rows: list[tuple[int, ...]] = []
    for _ in range(3):  # batches, each with a dictionary of its own
        columns = [random.integers(0, 3, 400) for _ in range(6)]
        columns[4] = columns[4] > 0
        log.add(pa.array([f"s{number}" for number in columns[0]]), *columns[1:])
        rows += zip(*(column.tolist() for column in columns), strict=True)
    first = [row not in rows[:number] for number, row in enumerate(rows)]
    assert 0 < sum(first) < len(rows) and without_repeats(log.table()).tolist() == first


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (BASIC, {"test_from": "2026-01-08"}, "test_from: .*runs from 2026-01-01T00:00:00Z to 2026-01-07T"),
        (BASIC, {"test_from": "2025-12-01"}, "test_from: no query is left to train"),
        (
            [impression("a", 6, rank=n + 1, clicked=True) | {"sid": "robot"} for n in range(1001)]
            + [impression("b", 6, rank=-1)],
            {},
            "left out: outside_window 0, of_long_sessions 1001, rejected rows: bad_rank 1;",
        ),
    ],
)
def test_a_log_without_usable_rows_says_why(tmp_path: Path, rows: list[Any], changes: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ingest(tmp_path, params(click_log(tmp_path, rows, **changes)))


@pytest.mark.parametrize("beyond", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_window_beyond_the_calendar_is_refused(tmp_path: Path, beyond: str) -> None:
    with pytest.raises(ValidationError):
        params(click_log(tmp_path, BASIC), until=beyond)


@pytest.mark.faults("robots")
@pytest.mark.medium
def test_robots_neither_train_nor_go_unsaid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session of 20,000 clicks; one query that ever new sessions click."""
    people = [impression(f"query {n}", day, clicked=True) for n in range(4) for day in (0, 6)]
    people += [impression("only late", 6, clicked=True)]
    flood = [impression("query 0", 1, f"d{n % 6}", rank=n + 1, clicked=True) | {"sid": "robot"} for n in range(20_000)]
    flood += [impression("spam", 1, clicked=True) | {"sid": "robot"}]
    crowd = [impression("query 1", 2, "d5", clicked=n % 2 == 0) | {"sid": f"crowd {n}"} for n in range(400)]
    monkeypatch.setattr(search_log, "MAX_QUERY_IMPRESSIONS", 100)
    source = click_log(tmp_path, [*people, *flood, *crowd], "log.parquet")
    out = ingest(tmp_path, params(source))
    printed = capsys.readouterr().out
    assert "20,001 impressions of sessions" in printed and "302 impressions of queries" in printed
    report = read_json(out / "report.json")["datasets"]["log"]
    assert (
        report["impressions_left_out"] | {"of_long_sessions": 20_001, "of_frequent_queries": 302}
        == (report["impressions_left_out"])
    )
    assert report["queries_left_out"]["of_robots_alone"] == 1
    assert "spam" not in rows_of(out, "queries", "text")
    texts = dict(rows_of(out, "queries", "query_id", "text"))
    crowd_rows = [
        row for row in rows_of(out, "impressions", "query_id", "session_id", "clicked") if texts[row[0]] == "query 1"
    ]
    assert len(crowd_rows) <= 100 and 30 < sum(clicked for *_, clicked in crowd_rows) < 70
    assert not any(session == "log/robot" for session in rows_of(out, "impressions", "session_id"))


@pytest.mark.faults("robots")
def test_without_sessions_a_popular_query_of_one_day_is_no_robot(tmp_path: Path) -> None:
    rows = [without(impression("a", day, clicked=True), ["sid"]) for day in (0, 6) for _ in range(1001)]
    source = click_log(tmp_path, [*rows, without(impression("b", 6, clicked=True), ["sid"])], "log.parquet")
    out = ingest(tmp_path, params(source | {"columns": COLUMNS | {"session_id": ""}}))
    assert "of_long_sessions" not in read_json(out / "report.json")["datasets"]["log"]["impressions_left_out"]
    assert len(rows_of(out, "impressions", "query_id")) == 1002  # the others are after test_from
