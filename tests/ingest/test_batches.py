"""Columns in batches: each distinct value is read once, and a log means the same however its rows are grouped."""

import gc
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ingest_logs import COLUMNS, DAY, FIRST, click_log, impression, ingest, params, reasons, rows_of, without

from slimtower.common.files import read_json
from steps.ingest import table_rows
from steps.ingest.batches import Batch, Column, Row
from steps.ingest.kinds import click_log as click_log_kind
from steps.ingest.rows import Defect

MIXED = [
    impression("Red -- shoes", 2, clicked=True), impression("red shoes", 1, "d1"), impression("?!", 0),
    impression("RED SHOES", 1, "d2", rank=2), impression("hat", 6, "nowhere", clicked=True), impression("hat", 6),
    impression("hat", 6, "d1", clicked=True), impression("red shoes", 0, "d1", rank=0), impression("coat", 1, "d 3"),
    impression("late words", 9, "d3"), impression("coat", 0, "d4", clicked=True), impression("", 3),
    impression("word " * 201, 3), impression("coat", 40, "d1"), impression("hat", 7, "d5", rank=3, clicked=True),
    impression("red shoes", 1) | {"sid": " s red shoes 1"}, impression("hat", 6, "d2") | {"ts": FIRST + 6 * DAY + 1},
    impression("RED SHOES ", 1, "d3") | {"sid": "s RED SHOES 1"},
]  # fmt: skip


def everything(out: Path) -> list[Any]:
    """What the stage wrote."""
    columns = ("session_id", "query_id", "doc_id", "rank", "clicked", "timestamp")
    return [
        rows_of(out, "impressions", *columns), rows_of(out, "qrels", "query_id", "doc_id", "split"),
        rows_of(out, "queries", "query_id", "text", "split"), reasons(out), read_json(out / "report.json"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv", "log.parquet"])
@pytest.mark.parametrize("columns", [COLUMNS, without(COLUMNS, ["session_id"])], ids=["sessions", "none"])
def test_batches_of_any_size_give_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, columns: dict[str, str]
) -> None:
    source = click_log(tmp_path, MIXED, name, columns=columns)
    written = []
    for size in (1, 2, 5, 1000):
        for kind in ("BATCH_ROWS", "TEXT_ROWS"):
            monkeypatch.setattr(table_rows, kind, size)
        written.append(everything(ingest(tmp_path, params(source, since="2026-01-01", until="2026-01-20"))))
    assert written[1:] == written[:1] * 3
    impressions, judgements, queries, rejected, _ = written[0]
    assert {text for _, text, _ in queries} == {"RED SHOES", "coat", "hat"}  # the earliest, then the smallest
    assert len(judgements) == 2
    header = name == "log.csv"
    assert [line - header for _, line, _ in rejected] == [3, 5, 8, 9, 12, 13]
    assert len({session for session, *_ in impressions}) == 6


def test_sessions_of_times_that_are_far_apart_stay_apart(tmp_path: Path) -> None:
    """As one wrong date among a log's is."""
    seconds = [
        ("hat", 0),
        ("hat", 2**32),
        ("hat", 7_000_000_000),
        ("hat", 90_000_000_000),
        ("coat", 0),
        ("coat", 2**32),
    ]
    times = [datetime.fromtimestamp(FIRST + after, UTC).isoformat() for _, after in seconds]
    rows = [impression(text, 0) | {"ts": time} for (text, _), time in zip(seconds, times, strict=True)]
    source = click_log(tmp_path, rows, columns=without(COLUMNS, ["session_id"]), test_from="")
    sessions = rows_of(ingest(tmp_path, params(source)), "impressions", "session_id", "timestamp")
    assert len(set(sessions)) == len({session for session, _ in sessions}) == 6
    assert all(session.endswith(f"@{moment}") for session, moment in sessions)


def test_no_batch_outlives_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by a defect that was raised while it was read."""
    seen: list[weakref.ref[Any]] = []
    alive: list[int] = []
    of_rows = Batch.of_rows

    def watched(rows: list[Row], names: Any) -> Batch:
        alive.append(sum(array() is not None for array in seen))
        batch = of_rows(rows, names)
        seen.append(weakref.ref(batch.lines))
        return batch

    monkeypatch.setattr(table_rows, "TEXT_ROWS", 10)
    monkeypatch.setattr(click_log_kind, "PROBED_ROWS", 10)
    monkeypatch.setattr(Batch, "of_rows", watched)
    rows = [impression("hat", 0, rank="x" if at % 10 == 0 else 1) for at in range(100)]
    gc.disable()
    try:
        ingest(tmp_path, params(click_log(tmp_path, [*rows, impression("coat", 6, clicked=True)])))
    finally:
        gc.enable()
    assert len(alive) == 11 and max(alive) == 1


def test_values_that_python_takes_for_equal_are_each_read_as_what_they_are() -> None:
    values = [1, True, 1.0, "1", None, [1], {"a": 1}, [1], 1, "1", None, 0.0, -0.0, 0.0]
    column = Column.of_values(values)
    assert [column[row] for row in range(len(values))] == values
    assert [type(column[row]) for row in range(len(values))] == [type(value) for value in values]
    assert [str(column[row]) for row in range(len(values))] == list(map(str, values))
    assert column.codes.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 3, 4, 8, 9, 8]


ARRAYS = {
    "text": pa.array(["b", None, "a", "b", None]),
    "coded": pa.array(["b", None, "a", "b", None]).dictionary_encode(),
    "views": pa.array(["b", None, "", "b", None], pa.string_view()),
    "bytes": pa.array([b"b", None, b"", b"b", None], pa.binary_view()),
    "json": pa.array(["1", None, "{}", "1", None], pa.json_(pa.string())),
    "money": pa.array([7, None, 0, 7, None], pa.decimal32(5, 2)),
    "views of a dictionary": pa.array(["b", None, "a", "b", None], pa.string_view()).dictionary_encode(),
    "numbers": pa.array([7, None, 0, 7, None]),
    "times": pa.array([7, None, 0, 7, None], pa.timestamp("us")),
    "lists": pa.array([["b"], None, [], ["b"], None]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrows_distinct_values_are_those_of_the_rows(name: str) -> None:
    array, defects = ARRAYS[name], dict[int, str]()
    column = Column.of_arrow(array, defects)
    assert [column[row] for row in range(len(array))] == array.to_pylist()
    assert not defects
    if name != "lists":
        assert len(column.values) == 3


def test_each_distinct_value_is_parsed_once_and_a_defect_is_that_of_all_its_rows() -> None:
    calls: list[Any] = []

    def parse(value: Any) -> int:
        calls.append(value)
        if value == "x":
            raise Defect("bad_rank")
        return int(value)

    parsed = Column.of_values(["3", "x", "0", "3", "x"]).parsed(parse)
    assert calls == ["3", "x", "0"]
    assert parsed.is_ok.tolist() == [True, False, True, True, False]
    assert parsed.array(int).tolist() == [3, 0, 0, 3, 0]
    assert parsed.defects[1].reason == "bad_rank"


def test_a_batch_gives_its_rows_back() -> None:
    rows = [Row(line, {"a": line % 2, "b": "x"}, f"raw {line}".encode()) for line in (4, 5, 9)]
    assert [Batch.of_rows(rows, ["a", "missing"]).row(at) for at in range(3)] == rows
    columns = {"a": Column.of_values(["p", "q", "p"])}
    batch = Batch(pa.array([4, 5, 9]).to_numpy(), columns).without([1])
    assert [batch.row(at) for at in range(2)] == [Row(4, {"a": "p"}, {"a": "p"}), Row(9, {"a": "p"}, {"a": "p"})]
