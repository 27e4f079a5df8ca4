"""What other programs write differently in a log is read if it cannot be mistaken; else the error names the setting."""

import json
from collections.abc import Callable, Mapping
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
    {
        "query": f"7{day}",
        "doc_id": f"{day + rank}",
        "rank": rank,
        "clicked": rank == 2,
        "timestamp": f"2026-01-{day:02}T19:00:00Z",
    }
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
    found = impressions(ingest(folder, params(click_log(folder, "log.jsonl", jsonl(LOG).encode()), max_reject_ratio=0)))
    assert len(found) == len(LOG)
    return found


def spelled(yes: str, no: str) -> bytes:
    return csv(set_in(LOG, clicked=lambda clicked: yes if clicked else no)).encode()


def us_date(text: str) -> str:
    return f"{text[5:7]}/{text[8:10]}/{text[:4]} {text[11:16]}"


CLICK_LOGS: dict[str, tuple[str, bytes]] = {
    "ranks from 0": ("log.csv", csv(set_in(LOG, rank=lambda rank: rank - 1)).encode()),
    "ranks as floats": ("log.csv", csv(set_in(LOG, rank=float)).encode()),
    "ranks from 0 as floats": ("log.csv", csv(set_in(LOG, rank=lambda rank: rank - 1.0)).encode()),
    "clicked Y/N": ("log.csv", spelled("Y", "N")),
    "clicked t/f": ("log.csv", spelled("t", "f")),
    "clicked yes/no": ("log.csv", spelled("Yes", "No")),
    "clicked 1.0/0.0": ("log.csv", spelled("1.0", "0.0")),
    "blank for no": ("log.csv", spelled("Y", "")),
    "null for no": ("log.jsonl", jsonl(set_in(LOG, clicked=lambda clicked: clicked or None)).encode()),
    "BigQuery's times": (
        "log.csv",
        csv(set_in(LOG, timestamp=lambda text: f"{text[:10]} {text[11:19]}.123456 UTC")).encode(),
    ),
    "semicolons": ("log.csv", csv(LOG, ";").encode()),
    "bars": ("log.csv", csv(LOG, "|").encode()),
    "tabs in .csv": ("log.csv", csv(LOG, "\t").encode()),
    "commas in .tsv": ("log.tsv", csv(LOG).encode()),
    "UTF-16": ("log.csv", csv(LOG).encode("utf-16")),
    "UTF-16, big end first": ("log.tsv", b"\xfe\xff" + csv(LOG, "\t").encode("utf-16-be")),
    "UTF-16 of JSON": ("log.jsonl", jsonl(LOG).encode("utf-16")),
    "header in capitals": (
        "log.csv",
        csv([{name.upper(): value for name, value in row.items()} for row in LOG]).encode(),
    ),
    "header with blanks": ("log.csv", csv(LOG).replace("doc_id", "Doc ID", 1).encode()),
    "JSON keys in capitals": (
        "log.jsonl",
        jsonl([{key.title(): each for key, each in row.items()} for row in LOG]).encode(),
    ),
    "documents as floats": ("log.csv", csv(set_in(LOG, doc_id=lambda doc: f"{doc}.0")).encode()),
    "documents as JSON floats": ("log.jsonl", jsonl(set_in(LOG, doc_id=float)).encode()),
    "queries as numbers": ("log.jsonl", jsonl(set_in(LOG, query=int)).encode()),
    "lists of one": ("log.jsonl", jsonl([{key: [each] for key, each in row.items()} for row in LOG]).encode()),
    ".ndjson": ("log.ndjson", jsonl(LOG).encode()),
}


@pytest.mark.parametrize("case", CLICK_LOGS)
def test_a_click_log_is_read_however_its_table_was_written(tmp_path: Path, expected: list[Any], case: str) -> None:
    out = ingest(tmp_path, params(click_log(tmp_path, *CLICK_LOGS[case]), **RATIO))
    assert impressions(out) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": pa.array([1_767_294_000_000_000 + 86_400_000_000 * (int(row["query"][1:]) - 1) for row in LOG])},
        {"query": pa.array([int(row["query"]) for row in LOG])},
        {"query": pa.array([float(row["query"]) for row in LOG])},
        {"doc_id": pa.array([float(row["doc_id"]) for row in LOG])},
        {"clicked": pa.array([1.0 if row["clicked"] else 0.0 for row in LOG])},
        {
            "timestamp": pa.array(
                [1_767_294_000 * 10**9 + 86_400 * 10**9 * (int(row["query"][1:]) - 1) + 1 for row in LOG],
                pa.timestamp("ns", "UTC"),
            )
        },
    ],
)
def test_parquet_columns_of_other_types(tmp_path: Path, expected: list[Any], change: Mapping[str, pa.Array]) -> None:
    table = pa.Table.from_pylist(LOG)
    for name, column in change.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    source = click_log(tmp_path, "log.parquet", b"")
    pq.write_table(table, tmp_path / "log.parquet")
    assert impressions(ingest(tmp_path, params(source, **RATIO))) == expected


def several(rows: Rows) -> Rows:
    return set_in(rows, clicked=lambda clicked: 3 if clicked else 0)


SETTINGS: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "clicks counted": (csv(several(LOG)).encode(), {"clicked": {False: ["", 0]}}, r"clicked: \{"),
    "time of the click": (spelled("2026-01-01 19:00", ""), {"clicked": {"false": [""]}}, r"clicked: \{"),
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
    content, settings, said = SETTINGS[case]
    with pytest.raises(UserError, match=said):
        ingest(tmp_path, params(click_log(tmp_path, "log.csv", content), **RATIO))
    out = ingest(tmp_path, params(click_log(tmp_path, "log.csv", content, **settings), **RATIO))
    found = impressions(out)
    if case == "few ranks of 0":
        assert {row[2] for row in found} == {1, 2, 3, 4}
    else:
        assert [(text.removeprefix("é "), *rest) for text, *rest in found] == expected


def ubi(folder: Path, searches: Rows, events: Rows, **settings: Any) -> dict[str, Any]:
    (folder / "q.jsonl").write_text(jsonl(searches), encoding="utf-8")
    (folder / "e.jsonl").write_text(jsonl(events), encoding="utf-8")
    common = {"name": "log", "test_from": "2026-01-10", "validation_fraction": 0.0, "corpus": corpus(folder)}
    places = {"queries": str(folder / "q.jsonl"), "events": str(folder / "e.jsonl")}
    return common | {"kind": "ubi"} | places | settings


def attributes(change: Callable[[str, int], Any]) -> Rows:
    def changed(own: Any) -> Any:
        return change(own["object"]["object_id"], own["position"]["ordinal"])

    return set_in(EVENTS, event_attributes=changed)


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
    "@timestamp": (of_at(SEARCHES), of_at(EVENTS)),
    "ordinals from 0": (
        SEARCHES,
        attributes(lambda doc, at: {"object": {"object_id": doc}, "position": {"ordinal": at - 1}}),
    ),
    "ordinal as object": (
        SEARCHES,
        attributes(lambda doc, at: {"object": {"object_id": doc}, "position": {"ordinal": {"value": at}}}),
    ),
    "position as number": (SEARCHES, attributes(lambda doc, at: {"object": {"object_id": doc}, "position": at})),
    "rank from 0": (SEARCHES, attributes(lambda doc, at: {"object": {"object_id": doc}, "rank": at - 1})),
    "positions null": (SEARCHES, attributes(lambda doc, at: {"object": {"object_id": doc}, "position": None})),
    "flat columns": (SEARCHES, flat(EVENTS)),
    "lists of one": (
        [{key: [each] for key, each in row.items()} for row in SEARCHES],
        [{key: [each] for key, each in row.items()} for row in flat(EVENTS)],
    ),
    "fields of hits": (
        [{"_id": "x", "fields": {key: [each] for key, each in row.items()}} for row in SEARCHES],
        [{"_id": "x", "fields": {key: [each] for key, each in row.items()}} for row in flat(EVENTS)],
    ),
    "ids as floats": (
        set_in(SEARCHES, query_id=float),
        set_in(
            attributes(lambda doc, at: {"object": {"object_id": float(doc)}, "position": {"ordinal": at}}),
            query_id=float,
        ),
    ),
    "actions in capitals": (SEARCHES, set_in(EVENTS, action_name=str.upper)),
    "Kibana's times": (set_in(SEARCHES, timestamp=kibana), set_in(EVENTS, timestamp=kibana)),
    "small letters in times": (set_in(SEARCHES, timestamp=str.lower), set_in(EVENTS, timestamp=str.lower)),
    "one event in sixty of another type": (
        SEARCHES,
        [*EVENTS, EVENTS[0] | {"action_name": 7}, EVENTS[0] | {"event_attributes": "x"}],
    ),
}


@pytest.mark.parametrize("case", UBI)
def test_a_ubi_log_is_read_however_its_indexes_were_exported(tmp_path: Path, expected: list[Any], case: str) -> None:
    assert impressions(ingest(tmp_path, params(ubi(tmp_path, *UBI[case]), **RATIO))) == expected


def test_users_own_actions_are_mapped(tmp_path: Path, expected: list[Any]) -> None:
    own = {"impression": "result_shown", "click": "view"}
    events = set_in(EVENTS, action_name=own.get)
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


@pytest.mark.parametrize("kind", ["click_log", "ubi"])
def test_a_query_above_a_limit_of_ours_is_left_out_and_stops_nothing(tmp_path: Path, kind: str) -> None:
    long = "word " * 201
    if kind == "ubi":
        searches = [row | {"user_query": long} if row["query_id"] == "3" else row for row in SEARCHES]
        source = ubi(tmp_path, searches, EVENTS)
    else:
        rows = [row | {"query": long} if row["query"] == "73" else row for row in LOG]
        source = click_log(tmp_path, "log.jsonl", jsonl(rows).encode())
    out = ingest(tmp_path, params(source, max_reject_ratio=0.0))
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
    told = capsys.readouterr().out
    entry = read_json(out / "report.json")["datasets"]["log"]["searches"]
    assert entry["used"] == [7, 7]
    assert entry["left_out"]["after_test_from"] == [1, 1] and entry["left_out"]["query_without_click"] == [1, 0]
    extra = 2 if kind == "ubi" else 0
    assert f"searches (clicks): {9 + extra} (8) read = 7 (7) used" in told
    assert f"queries: {8 + bool(extra)} read = 5 train + 2 test + {1 + bool(extra)} test without click" in told
