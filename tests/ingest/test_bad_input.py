"""Hundreds of bad inputs for every reader: no traceback, and every row is either used or a counted reject."""

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ingest_logs import COLUMNS
from toy_source import read_toy

from slimtower.common.errors import UserError
from steps.ingest import rows
from steps.ingest.kinds.beir import BeirSource
from steps.ingest.kinds.click_log import ClickLogSource
from steps.ingest.kinds.ms_marco import MsMarcoSource
from steps.ingest.kinds.ubi import UbiSource
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, read_lines
from steps.ingest.run import read_term_scores, read_unlabelled
from steps.ingest.source import SourceData
from steps.ingest.table_rows import read_rows

pytestmark = [pytest.mark.medium, pytest.mark.faults("bad input")]

NUMBERS = range(12)
EARLY, LATE = "2026-01-02T00:00:00Z", "2026-01-08T00:00:00Z"
LOG = [
    {"q": f"query {n}", "doc": f"d{n % 4}", "pos": 1, "clk": True, "ts": LATE if n > 8 else EARLY, "sid": f"s{n}"}
    for n in NUMBERS
]
SEARCHES = [
    {"query_id": f"q{n}", "user_query": f"query {n}", "timestamp": LATE if n > 8 else EARLY}
    | {"query_response_id": f"r{n}", "query_response_hit_ids": ["d0", "d1"]}
    for n in NUMBERS
]
EVENTS = [
    {"action_name": "click", "query_id": f"q{n}", "timestamp": LATE if n > 8 else EARLY}
    | {"event_attributes": {"object": {"object_id": "d1"}, "position": {"ordinal": 2}}}
    for n in NUMBERS
]
SCORES = [{"query": f"query {n}", "doc_id": f"d{n % 4}", "score": n / 2} for n in NUMBERS]
TABLE_CORPUS = [{"doc_id": f"d{n}", "title": f"title {n}", "content": f"content {n}"} for n in range(4)]


def jsonl(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def tsv(values: list[tuple[Any, ...]]) -> bytes:
    return b"".join("\t".join(map(str, value)).encode() + b"\n" for value in values)


def table(values: list[dict[str, Any]], comma: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, values[0], delimiter=comma, lineterminator="\n")
    writer.writeheader()
    writer.writerows(values)
    return text.getvalue().encode()


def parquet(values: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(values), sink)
    return sink.getvalue()


BEIR = {
    "corpus.jsonl": jsonl([{"_id": f"d{n}", "title": f"t {n}", "text": f"text {n}"} for n in NUMBERS]),
    "queries.jsonl": jsonl([{"_id": f"q{n}", "text": f"query {n}"} for n in NUMBERS]),
    "answers.jsonl": jsonl([{"_id": f"q{n}", "answers": [f"text {n}"]} for n in NUMBERS]),
    "qrels/test.tsv": tsv([("query-id", "corpus-id", "score"), *((f"q{n}", f"d{n}", 1) for n in range(6))]),
    "qrels/train.tsv": tsv([(f"q{n}", f"d{n}", 1) for n in range(6, 10)]),
}
MS_MARCO = {
    "collection.tsv": tsv([(n, f"passage {n}") for n in NUMBERS]),
    "queries.train.tsv": tsv([(n, f"question {n}") for n in range(6)]),
    "queries.dev.tsv": tsv([(n, f"question {n}") for n in range(6, 12)]),
    "qrels.train.tsv": tsv([(n, 0, n, 1) for n in range(6)]),
    "qrels.dev.tsv": tsv([(n, 0, n, 1) for n in range(6, 12)]),
    "triplets.tsv": tsv([(n, n, (n + 1) % 12) for n in range(6)]),
}
FORMS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "jsonl": jsonl, "csv": partial(table, comma=","), "tsv": partial(table, comma="\t"), "parquet": parquet,
}  # fmt: skip
LOGS = {f"log.{form}": written(LOG) for form, written in FORMS.items()} | {
    "corpus.jsonl": jsonl(TABLE_CORPUS), "corpus.csv": FORMS["csv"](TABLE_CORPUS), "scores.jsonl": jsonl(SCORES),
    "scores.tsv": FORMS["tsv"](SCORES), "scores.parquet": parquet(SCORES), "searches.jsonl": jsonl(SEARCHES),
    "searches.parquet": parquet(SEARCHES), "events.jsonl": jsonl(EVENTS), "events.parquet": parquet(EVENTS),
}  # fmt: skip
LISTS = {"queries.txt": tsv([("source", f"query {n}") for n in NUMBERS]), "terms.tsv": tsv([("shoe", 2), ("red", 1)])}

# What may lie in a value's place, as JSON spells it
VALUES = [
    "null", "true", "[]", "{}", '""', '" "', '"\\u0000"', '"\\u200b"', '"\\ud800"', '"a\\tb"', '"\\n"', "0", "-1",
    "1.5", "1e400", "NaN", "-Infinity", "9" * 400, "9" * 5000, "-62135596800", "1e18", '"0001-01-01T00:00:00+14:00"',
    '"9999-12-31T23:59:59-14:00"', '"2026-02-31"', '"nan"', '"inf"', '"' + "9" * 400 + '"', '"x" "y"',
    "[" * 3000 + "]" * 3000, '"' + "[" * 3000 + '"', '{"a": 1, "a": 2}', '"' + "x" * 200_000 + '"',
]  # fmt: skip


def in_json(content: bytes) -> Iterator[bytes]:
    """The content with each bad value in place of each value of its second row."""
    first, second, *rest = content.split(b"\n")
    row = json.loads(second)
    for key in row:
        for value in VALUES:
            fields = [f"{json.dumps(name)}: {value if name == key else json.dumps(row[name])}" for name in row]
            yield b"\n".join([first, "{{{}}}".format(", ".join(fields)).encode("utf-8", "surrogatepass"), *rest])


def in_columns(content: bytes, comma: bytes) -> Iterator[bytes]:
    """The content with each bad value in place of each field of its third row."""
    first, second, third, *rest = content.split(b"\n")
    fields = third.split(comma)
    bad = [
        b"", b" ", b"\0", "\u200b".encode(), b"\xff", b"-1", b"nan", b"inf", b"9" * 400, b"9" * 5000, b'"', b'"x',
        b"\r",
    ]  # fmt: skip
    for place in range(len(fields)):
        for value in [*bad, comma, b"x" * 200_000]:
            yield b"\n".join([first, second, comma.join([*fields[:place], value, *fields[place + 1 :]]), *rest])


def of_bytes(content: bytes) -> Iterator[bytes]:
    """The content damaged in ways that any file can be."""
    middle = len(content) // 2
    lines = content.splitlines(keepends=True)
    yield from (b"", b"\n\n", b" \t \n", b"\0" * 100, b"\xff\xfe" + content, content[:middle], content[1:])
    yield from (b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), content.replace(b"\n", b"\r"))
    yield from (
        content + b"\xff\xfe\n",
        content + b"\0\n",
        content + lines[-1],
        content + content,
        content.rstrip(b"\n"),
    )
    yield from (content.decode("latin-1").encode("utf-16"), gzip.compress(content), b"PAR1" + content + b"PAR1")
    yield from (content[:middle] + b"\n" + content[middle:], content[:middle] + b"\xc3\x28" + content[middle:])
    yield from (content + b"\t\t\t\n", content + b",,,,,\n", content + b"{}\n[]\nnull\n", content + b'{"_id": 7}\n')
    yield lines[0] + b"x" * 2**21 + b"\n" + b"".join(lines[1:])


def damaged(name: str, content: bytes) -> Iterator[bytes]:
    """All bad forms of a file."""
    yield from of_bytes(content)
    if name.endswith(".jsonl"):
        yield from in_json(content)
    elif not name.endswith(".parquet"):
        yield from in_columns(content, b"," if name.endswith(".csv") else b"\t")


def packed(content: bytes) -> Iterator[bytes]:
    """What a name that ends in .gz may hold."""
    whole = gzip.compress(content)
    yield from (content, b"", whole[:-9], whole[: len(whole) // 2], whole[:-8] + b"\0" * 8, whole + b"x", whole * 2)
    yield whole[:30] + bytes([whole[30] ^ 255]) + whole[31:]


@pytest.fixture(autouse=True)
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_LINE", 2**20, raising=False)


def beir(folder: Path) -> tuple[SourceData, Rejects]:
    return read_toy(BeirSource(kind="beir", name="toy", path=str(folder)), ratio=1.0)


def click_log(folder: Path, path: str = "log.jsonl", corpus: str = "corpus.jsonl", scores: str = "scores.jsonl") -> Any:
    source = ClickLogSource(
        kind="click_log", name="toy", path=str(folder / path), columns=COLUMNS, corpus=str(folder / corpus),
        relevance=str(folder / scores), test_from="2026-01-06", validation_fraction=0.0,
    )  # fmt: skip
    return read_toy(source, ratio=1.0)


def ubi(folder: Path, queries: str = "searches.jsonl", events: str = "events.jsonl") -> Any:
    source = UbiSource(
        kind="ubi", name="toy", queries=str(folder / queries), events=str(folder / events),
        corpus=str(folder / "corpus.jsonl"), test_from="2026-01-06", validation_fraction=0.0,
    )  # fmt: skip
    return read_toy(source, ratio=1.0)


def triplets(folder: Path) -> tuple[SourceData, Rejects]:
    source = MsMarcoSource(kind="ms_marco", name="toy", path=str(folder), triplets="triplets.tsv")
    return read_toy(source, ratio=1.0)


def lists(folder: Path) -> tuple[SourceData, Rejects]:
    rejects = Rejects(1.0)
    read_term_scores(folder / "terms.tsv", rejects)
    data = SourceData("toy")
    data.queries = read_unlabelled(folder / "queries.txt", rejects)
    return data, rejects


def used(data: SourceData, kind: str) -> int:
    """Rows of a kind that a source made use of, or says that it left out by rule."""
    facts = data.facts
    if kind == "documents":
        return len(data.documents)
    if kind == "queries":
        return len(data.queries) + sum(facts.get("queries_left_out", {}).values())
    if kind == "answers":
        return len(data.answers)
    if kind == "qrels":
        kept = sum(row.grade <= 0 for row in data.judgements)
        return len(data.judgements) + int(facts.get("judgements_not_relevant", 0)) - kept
    if kind == "impressions":
        assert data.impressions is not None
        return data.impressions.num_rows + sum(facts["impressions_left_out"].values())
    assert data.relevance is not None
    return data.relevance.num_rows + int(facts.get("relevance_pairs_repeated", 0))


KINDS = {
    "toy/corpus": "documents", "toy/collection": "documents", "toy/queries.": "queries", "toy/answers": "answers",
    "toy/qrels": "qrels", "toy/path/": "impressions", "toy/relevance/": "relevance",
}  # fmt: skip


def check(data: SourceData, rejects: Rejects) -> None:
    """Of every kind of rows: used + rejected = read."""
    read, rejected = dict.fromkeys(KINDS.values(), 0), dict.fromkeys(KINDS.values(), 0)
    kind_of = {
        source: kind for source in rejects._rows_read for begin, kind in KINDS.items() if source.startswith(begin)
    }
    for source, kind in kind_of.items():
        read[kind] += rejects._rows_read[source]
    for (source, _), count in rejects._counts.items():
        if source in kind_of:
            rejected[kind_of[source]] += count
    for kind in set(kind_of.values()):
        assert used(data, kind) + rejected[kind] == read[kind], (kind, rejects._counts, data.facts)
    for source, count in rejects._rows_read.items():
        assert sum(n for (where, _), n in rejects._counts.items() if where == source) <= count


def lines_in(name: str, content: bytes) -> int | None:
    """How many rows a file has, counted otherwise than the readers do; None where its format makes that hard."""
    if name.endswith((".csv", ".parquet")) or name.startswith(("log.", "scores.t")):
        return None
    if content.startswith(b"\xff\xfe") and b"\0" in content[2:]:
        content = content[2:].decode("utf-16-le").encode()
    lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    header = lines[:1] and lines[0].split(b"\t")[0].strip(b" \xff\xfe").lower() in (b"query-id", b"query_id", b"qid")
    return len(lines) - int(bool(header and content.removeprefix(b"\xef\xbb\xbf").split(b"\n")[0] == lines[0]))


READERS: dict[str, tuple[dict[str, bytes], str, Callable[[Path], tuple[SourceData, Rejects]]]] = {
    **{f"beir {name}": (BEIR, name, beir) for name in BEIR},
    **{f"ms marco {name}": (MS_MARCO, name, triplets) for name in MS_MARCO},
    **{f"click log {form}": (LOGS, f"log.{form}", partial(click_log, path=f"log.{form}")) for form in FORMS},
    **{
        f"corpus {form}": (LOGS, f"corpus.{form}", partial(click_log, corpus=f"corpus.{form}"))
        for form in ("jsonl", "csv")
    },
    **{
        f"scores {form}": (LOGS, f"scores.{form}", partial(click_log, scores=f"scores.{form}"))
        for form in ("jsonl", "tsv", "parquet")
    },
    **{
        f"searches {form}": (LOGS, f"searches.{form}", partial(ubi, queries=f"searches.{form}"))
        for form in ("jsonl", "parquet")
    },
    **{
        f"events {form}": (LOGS, f"events.{form}", partial(ubi, events=f"events.{form}"))
        for form in ("jsonl", "parquet")
    },
    **{f"list {name}": (LISTS, name, lists) for name in LISTS},
}


def lay_out(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def survives(read: Callable[[Path], tuple[SourceData, Rejects]], folder: Path, name: str, content: bytes) -> bool:
    """Whether a file could be read; it is the only one that may be at fault, and no error but ours may say so."""
    try:
        data, rejects = read(folder)
    except UserError as error:
        assert str(error)
        return False
    check(data, rejects)
    of_file = sum(count for source, count in rejects._rows_read.items() if source.endswith(f"/{Path(name).name}"))
    expected = lines_in(name, content)
    assert expected is None or of_file == expected
    return True


@pytest.mark.parametrize("which", READERS)
def test_bad_input_costs_its_rows_or_says_what_is_wrong(
    which: str, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    files, name, read = READERS[which]
    lay_out(tmp_path, files)
    assert survives(read, tmp_path, name, files[name])
    for content in damaged(name, files[name]):
        (tmp_path / name).write_bytes(content)
        survives(read, tmp_path, name, content)
        record_property("cases", 1)


def test_there_are_hundreds_of_them() -> None:
    assert sum(sum(1 for _ in damaged(name, files[name])) for files, name, _ in READERS.values()) > 500


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_damaged_gzip_is_one_line(name: str, tmp_path: Path, record_property: Callable[..., None]) -> None:
    lay_out(tmp_path, {other: content for other, content in BEIR.items() if other != name})
    for content in packed(BEIR[name]):
        (tmp_path / f"{name}.gz").write_bytes(content)
        record_property("cases", 1)
        try:
            check(*beir(tmp_path))
        except UserError as error:
            assert str(tmp_path) in str(error)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    which=st.sampled_from(sorted(READERS)), cuts=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), max_size=4)
)
def test_random_bytes_anywhere(
    which: str,
    cuts: list[tuple[float, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
    record_property: Callable[..., None],
) -> None:
    record_property("cases", 1)
    files, name, read = READERS[which]
    folder = tmp_path_factory.mktemp("random")
    content = files[name]
    for where, given_bytes in cuts:
        place = int(where * len(content))
        content = content[:place] + given_bytes + content[place + len(given_bytes) // 2 :]
    lay_out(folder, files | {name: content})
    survives(read, folder, name, content)


def test_a_line_without_end_is_passed_over_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_LINE", 1000)
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n' + b"x" * 10_000 + b'\n{"a": 2}\n' + b"y" * 1001)
    found = list(read_lines(tmp_path / "x.jsonl"))
    assert [(line, type(raw) is bytes) for line, raw in found] == [(1, True), (2, False), (3, True), (4, False)]
    assert max(len(raw) for _, raw in found) == 1000
    rejects = Rejects(1.0)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n" + "1," * 1000 + '\n"3\n4",5\n', encoding="utf-8")
    values = [
        row.values["a"] for row in read_rows(tmp_path / "x.csv", required={"a": "k"}, source="s", rejects=rejects)
    ]
    assert values == ["1", "3\n4"]
    assert [(row.line, row.reason) for row in rejects.rows] == [(3, "invalid_csv")]


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b'{"a": 1, "b": {"c": 1, "c": 1}}'])
def test_a_key_that_is_there_twice_is_a_reject(text: bytes) -> None:
    with pytest.raises(Defect, match="duplicate_key"):
        rows.json_object(text)


def test_a_field_of_csv_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    long = "wort " * 40_000
    (tmp_path / "x.csv").write_text(f'a,b\n"{long}\n{long}",2\n{"x" * 2**20},3\n', encoding="utf-8")
    rejects = Rejects(1.0)
    found = list(read_rows(tmp_path / "x.csv", required={"a": "k"}, source="s", rejects=rejects))
    assert [row.values["a"] for row in found] == [f"{long}\n{long}"]
    assert [(row.line, row.reason) for row in rejects.rows] == [(4, "invalid_csv")]


def test_two_files_of_one_name_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, BEIR | {"corpus.jsonl.gz": gzip.compress(b"")})
    with pytest.raises(UserError, match="lies beside it"):
        beir(tmp_path)
    (tmp_path / "corpus.jsonl.gz").unlink()
    (tmp_path / "qrels" / "other.tsv").mkdir()
    with pytest.raises(UserError, match="is not a file"):
        beir(tmp_path)
    (tmp_path / "qrels" / "other.tsv").rmdir()
    (tmp_path / "qrels" / "train.tsv").unlink()
    os.mkfifo(tmp_path / "qrels" / "train.tsv")
    with pytest.raises(UserError, match="is not a file"):
        beir(tmp_path)
