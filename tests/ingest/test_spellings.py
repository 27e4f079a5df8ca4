"""What other programs write differently in a log is read if it cannot be mistaken; else the error names the setting."""

import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_logs import ingest, jsonl, params, rows_of, set_in

from slimtower.common.errors import UserError
from slimtower.common.files import read_json

Rows = list[dict[str, Any]]
COLUMNS = {name: name for name in ("query", "doc_id", "rank", "clicked", "timestamp")}
DAYS = (*range(1, 6), 11, 12)
LOG: Rows = [
    {"query": f"7{day}", "doc_id": f"{day + rank}", "rank": rank, "clicked": rank == 2}
    | {"timestamp": f"2026-01-{day:02}T19:00:00Z"}
    for day in DAYS
    for rank in (1, 2, 3)
]
SEARCHES: Rows = [
    {"query_id": f"{day}", "user_query": f"7{day}", "timestamp": f"2026-01-{day:02}T19:00:00Z"} for day in DAYS
]
EVENTS: Rows = [
    {"action_name": action, "query_id": row["query"][1:], "timestamp": row["timestamp"]}
    | {"event_attributes": {"object": {"object_id": row["doc_id"]}, "position": {"ordinal": row["rank"]}}}
    for row in LOG
    for action in (["impression", "click"] if row["clicked"] else ["impression"])
]
RATIO = {"max_reject_ratio": 0.01}


def corpus(folder: Path, **changes: Any) -> str:
    rows = [{"doc_id": f"{n}", "content": f"text {n}"} | changes for n in range(20)]
    path = folder / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def csv(rows: Rows, sign: str = ",") -> str:
    return "\n".join([sign.join(rows[0]), *(sign.join(map(str, row.values())) for row in rows), ""])


def click_log(folder: Path, name: str, content: bytes, **settings: Any) -> dict[str, Any]:
    (folder / name).write_bytes(content)
    common = {"name": "log", "test_from": "2026-01-10", "validation_fraction": 0.0, "corpus": corpus(folder)}
    return common | {"kind": "click_log", "path": str(folder / name), "columns": COLUMNS} | settings


def impressions(out: Path) -> list[Any]:
    texts = dict(rows_of(out, "queries", "query_id", "text"))
    columns = rows_of(out, "impressions", "query_id", "doc_id", "rank", "clicked", "timestamp")
    return sorted((texts[query], doc.partition("/")[2], *rest) for query, doc, *rest in columns)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("plain")
    rows = impressions(ingest(folder, params(click_log(folder, "log.jsonl", jsonl(LOG).encode()), max_reject_ratio=0)))
    assert len(rows) == len(LOG)
    return rows


def clicked(rows: Rows, yes: str, no: str, name: str = "clicked") -> Rows:
    return set_in(rows, **{name: lambda is_clicked: yes if is_clicked else no})


def capitals(rows: Rows) -> Rows:
    return [{name.upper(): value for name, value in row.items()} for row in rows]


def spelled(yes: str, no: str) -> bytes:
    return csv(clicked(LOG, yes, no)).encode()


def parquet(rows: Rows, **kinds: pa.DataType) -> bytes:
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    for name, kind in kinds.items():
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    pq.write_table(table, sink)
    return sink.getvalue()


def microseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 10**6


def in_bigquery(text: str) -> str:
    return f"{text[:10]} {text[11:19]}.123456 UTC"


def us_date(text: str) -> str:
    return f"{text[5:7]}/{text[8:10]}/{text[:4]} {text[11:16]}"


def listed(rows: Rows) -> Rows:
    return [{key: [value] for key, value in row.items()} for row in rows]


# Each spells several columns otherwise, which nothing ties to each other.
IN_CSV = set_in(LOG, rank=lambda rank: rank - 1.0, timestamp=in_bigquery, doc_id="{}.0".format)
IN_JSON = set_in(LOG, clicked=lambda clicked: clicked or None, doc_id=float, query=int)
CLICK_LOGS: dict[str, tuple[str, bytes]] = {
    "ranks from 0 and documents as floats, times of BigQuery, yes/no, semicolons, UTF-16": (
        "log.csv", csv(clicked(IN_CSV, "Yes", "No"), ";").encode("utf-16"),
    ),
    "ranks from 0, t/f, bars, header in capitals": (
        "log.csv", csv(clicked(capitals(set_in(LOG, rank=lambda rank: rank - 1)), "t", "f", "CLICKED"), "|").encode(),
    ),
    "ranks as floats, 1.0/0.0, commas in .tsv, header with blanks": (
        "log.tsv", csv(clicked(set_in(LOG, rank=float), "1.0", "0.0")).replace("doc_id", "Doc ID", 1).encode(),
    ),
    "blank for no, tabs in .csv": ("log.csv", csv(clicked(LOG, "Y", ""), "\t").encode()),
    "Y/N, UTF-16, big end first": ("log.tsv", b"\xfe\xff" + csv(clicked(LOG, "Y", "N"), "\t").encode("utf-16-be")),
    "null for no, numbers for ids and texts, keys in capitals, UTF-16 of JSON": (
        "log.jsonl", jsonl(capitals(IN_JSON)).encode("utf-16"),
    ),
    "lists of one in .ndjson": ("log.ndjson", jsonl(listed(LOG)).encode()),
    "Parquet, numbers for times, texts and clicks": (
        "log.parquet", parquet(set_in(LOG, timestamp=microseconds, query=int, clicked=float)),
    ),
    "Parquet, nanoseconds, floats for ids and texts": (
        "log.parquet",
        parquet(set_in(LOG, timestamp=lambda text: 1000 * microseconds(text) + 1, query=float, doc_id=float),
                timestamp=pa.timestamp("ns", "UTC")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLICK_LOGS)
def test_a_click_log_is_read_however_its_table_was_written(tmp_path: Path, expected: list[Any], case: str) -> None:
    out = ingest(tmp_path, params(click_log(tmp_path, *CLICK_LOGS[case]), **RATIO))
    assert impressions(out) == expected


def several(rows: Rows) -> Rows:
    return set_in(rows, clicked=lambda clicked: 3 if clicked else 0)


SETTINGS: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "clicks counted": (csv(several(LOG)).encode(), {"clicked": {False: ["", 0]}}, r"clicked: \{"),
    "words for clicks": (spelled("hit", "miss"), {"clicked": {True: ["hit"], False: ["miss"]}}, r"clicked: \{"),
    "booleans of YAML": (spelled("Yes", "skip"), {"clicked": {True: [True]}}, r"clicked: \{"),
    "US dates": (csv(set_in(LOG, timestamp=us_date)).encode(), {"timestamp": "%m/%d/%Y %H:%M"}, "timestamp: "),
    "Latin-1": (
        csv(set_in(LOG, query=lambda text: f"é {text}")).encode("latin-1"),
        {"encoding": "latin-1"},
        "encoding: ",
    ),
    "~ as delimiter": (csv(LOG, "~").encode(), {"delimiter": "~"}, "no column"),
    "few ranks of 0": (
        csv(set_in(LOG, rank=lambda rank: rank if rank > 1 else 0)).encode() + b"72,3,1,0,2026-01-02T20:00:00Z\n" * 50,
        {"rank_from": 0},
        "rank_from: 0",
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("case", SETTINGS)
def test_what_can_be_mistaken_has_a_setting_that_the_error_names(
    tmp_path: Path, expected: list[Any], case: str
) -> None:
    content, settings, message = SETTINGS[case]
    with pytest.raises(UserError, match=message):
        ingest(tmp_path, params(click_log(tmp_path, "log.csv", content), **RATIO))
    out = ingest(tmp_path, params(click_log(tmp_path, "log.csv", content, **settings), **RATIO))
    rows = impressions(out)
    if case == "few ranks of 0":
        assert {row[2] for row in rows} == {1, 2, 3, 4}
    else:
        assert [(text.removeprefix("é "), *rest) for text, *rest in rows] == expected


def ubi(folder: Path, searches: Rows, events: Rows, **settings: Any) -> dict[str, Any]:
    (folder / "q.jsonl").write_text(jsonl(searches), encoding="utf-8")
    (folder / "e.jsonl").write_text(jsonl(events), encoding="utf-8")
    common = {"name": "log", "test_from": "2026-01-10", "validation_fraction": 0.0, "corpus": corpus(folder)}
    paths = {"queries": str(folder / "q.jsonl"), "events": str(folder / "e.jsonl")}
    return common | {"kind": "ubi"} | paths | settings


def placed(at: Callable[[int], dict[str, Any]]) -> Rows:
    """The events, their places written otherwise."""
    return set_in(
        EVENTS, event_attributes=lambda values: {"object": values["object"]} | at(values["position"]["ordinal"])
    )


def flat(rows: Rows) -> Rows:
    return [
        {key: value for key, value in row.items() if key != "event_attributes"}
        | {
            "event_attributes.object.object_id": row["event_attributes"]["object"]["object_id"],
            "event_attributes.position.ordinal": row["event_attributes"]["position"]["ordinal"],
        }
        for row in rows
    ]


def of_at(rows: Rows) -> Rows:
    return [{key.replace("timestamp", "@timestamp"): value for key, value in row.items()} for row in rows]


def kibana(text: str) -> str:
    return f"Jan {int(text[8:10])}, {text[:4]} @ {text[11:19]}.000"


CLICKS_ALONE = [row for row in EVENTS if row["action_name"] == "click"]
UBI: dict[str, tuple[Rows, Rows]] = {
    "plain": (SEARCHES, EVENTS),
    "@timestamp, ordinals from 0, actions in capitals": (
        of_at(SEARCHES),
        of_at(set_in(placed(lambda at: {"position": {"ordinal": at - 1}}), action_name=str.upper)),
    ),
    "ordinal as object, Kibana's times": (
        set_in(SEARCHES, timestamp=kibana),
        set_in(placed(lambda at: {"position": {"ordinal": {"value": at}}}), timestamp=kibana),
    ),
    "position as number, small letters in times": (
        set_in(SEARCHES, timestamp=str.lower),
        set_in(placed(lambda at: {"position": at}), timestamp=str.lower),
    ),
    "rank from 0": (SEARCHES, placed(lambda at: {"rank": at - 1})),
    "positions null": (SEARCHES, placed(lambda at: {"position": None})),
    "flat columns, ids as floats": (
        set_in(SEARCHES, query_id=float),
        set_in(flat(EVENTS), query_id=float, **{"event_attributes.object.object_id": float}),
    ),
    "fields of hits, lists of one": (
        [{"_id": "x", "fields": row} for row in listed(SEARCHES)],
        [{"_id": "x", "fields": row} for row in listed(flat(EVENTS))],
    ),
    "one event in sixty of another type": (
        SEARCHES,
        [*EVENTS, EVENTS[0] | {"action_name": 7}, EVENTS[0] | {"event_attributes": "x"}],
    ),
}


@pytest.mark.parametrize("case", UBI)
def test_a_ubi_log_is_read_however_its_indexes_were_exported(tmp_path: Path, expected: list[Any], case: str) -> None:
    assert impressions(ingest(tmp_path, params(ubi(tmp_path, *UBI[case]), **RATIO))) == expected


def test_users_own_actions_are_mapped(tmp_path: Path, expected: list[Any]) -> None:
    actions = {"impression": "result_shown", "click": "view"}
    events = set_in(EVENTS, action_name=actions.get)
    source = ubi(tmp_path, SEARCHES, events, click_actions=["view"], impression_actions=["result_shown"])
    assert impressions(ingest(tmp_path, params(source, **RATIO))) == expected


@pytest.mark.parametrize("action", ["product_click", "add_to_cart", ""])
def test_events_without_a_click_name_the_actions_that_there_are(tmp_path: Path, action: str) -> None:
    events = [row | {"action_name": action} if row["action_name"] == "click" else row for row in EVENTS]
    with pytest.raises(UserError, match=rf"click_actions: no event is a click .*'{action}' \(7\)"):
        ingest(tmp_path, params(ubi(tmp_path, SEARCHES, events), **RATIO))
    nameless = [row | {"query_id": None} for row in EVENTS]
    with pytest.raises(UserError, match="the 7 clicks name no query_id"):
        ingest(tmp_path, params(ubi(tmp_path, SEARCHES, nameless), **RATIO))


def test_a_log_of_clicks_alone_shows_what_was_clicked(
    tmp_path: Path, expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    out = ingest(tmp_path, params(ubi(tmp_path, SEARCHES, CLICKS_ALONE), **RATIO))
    assert impressions(out) == [row for row in expected if row[3]]
    assert "WARNING: log: no search has hits and no event is an impression" in capsys.readouterr().err


@pytest.mark.parametrize(("shift", "stops"), [(0, False), (3, True), (10, True)])
def test_clicks_that_are_lost_stop_a_log_however_many_other_rows_are_of_use(
    tmp_path: Path, shift: int, stops: bool
) -> None:
    """Hits that are numbers of the engine's own, which happen to be ids of the corpus."""
    searches = [
        row | {"query_response_hit_ids": [f"{(int(row['query_id']) + at + shift) % 20}" for at in (1, 2, 3)]}
        for row in SEARCHES
    ]
    source = ubi(tmp_path, searches, EVENTS)
    if stops:
        with pytest.raises(UserError, match="7 of 7 clicks are lost"):
            ingest(tmp_path, params(source, max_reject_ratio=1.0))
    else:
        ingest(tmp_path, params(source, **RATIO))


@pytest.mark.parametrize("lost", [1, 4])
def test_clicks_of_a_table_on_unknown_documents_are_judged_alone(
    tmp_path: Path, lost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"doc_id": "gone"} if row["clicked"] and int(row["query"][1:]) <= lost else row for row in LOG]
    source = click_log(tmp_path, "log.csv", csv(rows).encode())
    if lost == 4:
        with pytest.raises(UserError, match="4 of 7 clicks are lost"):
            ingest(tmp_path, params(source, max_reject_ratio=1.0))
    else:
        ingest(tmp_path, params(source, max_reject_ratio=1.0))
        assert "1 of 7 clicks are lost" in capsys.readouterr().err


def test_bad_rows_are_judged_over_all_files_of_a_source(tmp_path: Path) -> None:
    source = click_log(tmp_path, "unread.csv", b"") | {"path": str(tmp_path / "days")}
    (tmp_path / "days").mkdir()
    for part in range(20):
        (tmp_path / f"days/{part:02}.csv").write_text(csv(LOG), encoding="utf-8")
    (tmp_path / "days/99.csv").write_text(csv([*LOG[:2], LOG[0] | {"rank": "x"}]), encoding="utf-8")
    ingest(tmp_path, params(source, **RATIO))
    (tmp_path / "days/98.csv").write_text(csv([row | {"rank": "x"} for row in LOG]), encoding="utf-8")
    with pytest.raises(UserError, match=r"days: 22 of 444 rows .*log/path/98\.csv line 2"):
        ingest(tmp_path, params(source, **RATIO))


def test_a_query_above_a_limit_of_ours_is_left_out_and_stops_nothing(tmp_path: Path) -> None:
    searches = [row | {"user_query": "word " * 201} if row["query_id"] == "3" else row for row in SEARCHES]
    out = ingest(tmp_path, params(ubi(tmp_path, searches, EVENTS), max_reject_ratio=0.0))
    assert {row[0] for row in impressions(out)} == {f"7{day}" for day in DAYS if day != 3}
    assert set(rows_of(out, "rejects", "reason")) == {"query_too_long"}


@pytest.mark.parametrize("kind", ["click_log", "ubi"])
def test_every_search_click_and_query_that_was_read_is_accounted_for(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [row | {"timestamp": "2026-01-13T00:00:00Z"} for row in LOG[:3]]  # an old query after test_from
    ignored = [row | {"timestamp": "2026-01-13T00:00:00Z", "query": "nobody", "clicked": False} for row in LOG[:3]]
    if kind == "click_log":
        source = click_log(tmp_path, "log.jsonl", jsonl([*LOG, *again, *ignored]).encode())
    else:
        rows = [("again", SEARCHES[0]["user_query"]), ("ignored", "nobody"), ("bare", "empty"), ("browse", " ")]
        more = [{"query_id": name, "user_query": text, "timestamp": "2026-01-13T00:00:00Z"} for name, text in rows]
        events = [
            event | {"query_id": name, "timestamp": "2026-01-13T00:00:01Z"}
            for name, actions in (("again", {"impression", "click"}), ("ignored", {"impression"}))
            for event in EVENTS[:4]
            if event["action_name"] in actions
        ]
        source = ubi(tmp_path, [*SEARCHES, *more], [*EVENTS, *events])
    out = ingest(tmp_path, params(source))
    summary = capsys.readouterr().out
    entry = read_json(out / "report.json")["datasets"]["log"]["searches"]
    assert entry["used"] == [7, 7]
    assert entry["left_out"]["after_test_from"] == [1, 1] and entry["left_out"]["query_without_click"] == [1, 0]
    extra = 2 if kind == "ubi" else 0
    assert f"searches (clicks): {9 + extra} (8) read = 7 (7) used" in summary
    assert f"queries: {8 + bool(extra)} read = 5 train + 2 test + {1 + bool(extra)} test without click" in summary
