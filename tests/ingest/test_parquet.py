"""A bad row of a Parquet file costs that row, whatever is in it; a bad file is one line that says what to do."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_logs import COLUMNS, FIRST, click_log, impression, ingest, params, reasons, rows_of

from slimtower.common.errors import UserError
from steps.ingest.rejects import Rejects
from steps.ingest.table_rows import TableFile

ROWS = [
    impression(text, day, clicked=True) for text, day in (("a query", 0), ("spoilt", 1), ("more", 2), ("a test", 6))
]
SPOILT = 2  # the 1-based number of the row that is replaced
LARGEST = 2**63 - 1


def spelled(texts: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Strings of these bytes, UTF-8 or not."""
    column = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    return column.cast(kind) if kind else column


def times(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)


def log_with(folder: Path, column: str, values: pa.Array, **changes: Any) -> dict[str, Any]:
    """A click log of ROWS whose `column` holds these values."""
    source = click_log(folder, ROWS, "log.parquet", **changes)
    table = pa.Table.from_pylist(ROWS)
    table = table.set_column(table.column_names.index(column), column, values)
    pq.write_table(table, source["path"])
    return source


TEXTS = [row["q"].encode() for row in ROWS]
NOT_UTF8 = [TEXTS[0], b"caf\xe9 \xff", *TEXTS[2:]]


TIMES = {  # units a second, and the largest; Parquet has no seconds: they are written as milliseconds
    pa.timestamp("s"): (1, LARGEST // 1000),
    pa.timestamp("ms"): (1000, LARGEST),
    pa.timestamp("us", "UTC"): (10**6, LARGEST),
    pa.date32(): (1 / 86_400, 2**31 - 1),
}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_outside_the_calendar_is_a_reject(tmp_path: Path, kind: pa.DataType, sign: int) -> None:
    units, largest = TIMES[kind]
    values = [int(row["ts"] * units) for row in ROWS]
    values[SPOILT - 1] = sign * largest
    out = ingest(tmp_path, params(log_with(tmp_path, "ts", times(values, kind))))
    assert reasons(out) == [("log/path/log.parquet", SPOILT, "bad_timestamp")]
    assert len(rows_of(out, "impressions", "rank")) == len(ROWS) - 1
    raw = rows_of(out, "rejects", "raw")[0]
    assert '"q": "spoilt"' in raw and (kind != pa.date32() or f'"ts": {sign * largest}' in raw)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("column", ["q", "doc", "sid"])
def test_text_that_is_not_utf8_is_a_reject(tmp_path: Path, kind: pa.DataType, column: str) -> None:
    texts = [row[column].encode() for row in ROWS]
    texts[SPOILT - 1] = b"caf\xe9"
    values = spelled(texts)
    values = values.dictionary_encode() if pa.types.is_dictionary(kind) else values
    out = ingest(tmp_path, params(log_with(tmp_path, column, values)))
    assert reasons(out) == [("log/path/log.parquet", SPOILT, "invalid_utf8")]
    assert len(rows_of(out, "impressions", "rank")) == len(ROWS) - 1


ODD: dict[str, pa.Array] = {
    "zone": times([FIRST, 2, 3, 4], pa.timestamp("us", "Mars/Olympus")),
    "nanoseconds": times([LARGEST, -LARGEST, 1, FIRST * 10**9], pa.timestamp("ns")),
    "no time": times([-LARGEST - 1, 0, 1, 2], pa.timestamp("ns")),
    "time of day": times([LARGEST, 1, 2, 3], pa.time64("us")),
    "duration": times([LARGEST, 1, 2, 3], pa.duration("us")),
    "lists": pa.ListArray.from_arrays([0, 1, 2, 3, 4], spelled(NOT_UTF8)),
    "structs": pa.StructArray.from_arrays([spelled(NOT_UTF8)], ["a"]),
    "maps": pa.array([[("a", 1)], [], None, [("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "decimals": pa.array([Decimal("1.5"), Decimal("1e30"), None, Decimal("2")]),
    "numbers": pa.array([float("nan"), float("inf"), -0.0, 1e300]), "bytes": pa.array([b"\xff", b"", None, b"1"]),
    "truth": pa.array([True, False, None, True]), "nulls": pa.nulls(4), "not utf-8": spelled(NOT_UTF8),
}  # fmt: skip


@pytest.mark.parametrize("column", sorted(ROWS[0]))
@pytest.mark.parametrize("odd", sorted(ODD))
def test_a_column_of_any_type_is_read_row_by_row(tmp_path: Path, column: str, odd: str) -> None:
    path = Path(log_with(tmp_path, column, ODD[odd])["path"])
    rejects = Rejects(1.0)
    rows = list(TableFile(path, "log", dict.fromkeys(COLUMNS.values(), "key"), rejects).rows())
    assert rejects._rows_read["log"] == len(ROWS) == len(rows) + len(rejects.rows)
    assert sorted(row.line for row in [*rows, *rejects.rows]) == [1, 2, 3, 4]
    assert all(isinstance(row.raw(), str) for row in rows)
    source = log_with(tmp_path, column, ODD[odd])
    try:
        out = ingest(tmp_path, params(source))
    except UserError as error:  # no query of the test, or none at all
        assert "params.yaml: ingest.sources[0]" in str(error)
    else:
        left_out = {line for _, line, _ in reasons(out)}
        assert len(rows_of(out, "impressions", "rank")) <= len(ROWS) - len(left_out)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.tsv"])
def test_a_column_there_twice_is_one_line_that_says_what_to_do(tmp_path: Path, name: str) -> None:
    source = click_log(tmp_path, ROWS, name)
    path = Path(source["path"])
    if name == "log.parquet":
        table = pa.Table.from_pylist(ROWS)
        pq.write_table(table.append_column("ts", table["ts"]), path)
    else:
        comma = "," if name == "log.csv" else "\t"
        path.write_text("".join(f"{line}{comma}{line.split(comma)[4]}\n" for line in path.read_text().splitlines()))
    with pytest.raises(UserError, match=rf"{name}: .*: 2 columns are called 'ts'.*rename or leave out the others"):
        ingest(tmp_path, params(source))


def test_a_decimal_rank_is_a_whole_number_or_a_reject(tmp_path: Path) -> None:
    ranks = pa.array([Decimal("1.0"), Decimal("1.5"), Decimal("2.0"), Decimal("3.0")])
    out = ingest(tmp_path, params(log_with(tmp_path, "pos", ranks)))
    assert reasons(out) == [("log/path/log.parquet", SPOILT, "bad_rank")]
    assert rows_of(out, "impressions", "rank") == [1, 2, 3]
