"""Hundreds of bad inputs for every reader: no traceback, and every row is either used or a counted reject."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from beir_folders import lines, sound_folder
from ingest_logs import COLUMNS, impression, write
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
from steps.ingest.table_rows import TableFile

pytestmark = [pytest.mark.medium, pytest.mark.faults("bad input")]

NUMBERS = range(12)
LOG = [impression(f"query {n}", 7 if n > 8 else 1, f"d{n % 4}", clicked=True) for n in NUMBERS]
TIMES = ["2026-01-08T00:00:00Z" if n > 8 else "2026-01-02T00:00:00Z" for n in NUMBERS]
SEARCHES = [
    {"query_id": f"q{n}", "user_query": f"query {n}", "timestamp": TIMES[n]}
    | {"query_response_id": f"r{n}", "query_response_hit_ids": ["d0", "d1"]}
    for n in NUMBERS
]
EVENTS = [
    {"action_name": "click", "query_id": f"q{n}", "timestamp": TIMES[n]}
    | {"event_attributes": {"object": {"object_id": "d1"}, "position": {"ordinal": 2}}}
    for n in NUMBERS
]
SCORES = [{"query": f"query {n}", "doc_id": f"d{n % 4}", "score": n / 2} for n in NUMBERS]
CORPUS = [{"doc_id": f"d{n}", "title": f"title {n}", "content": f"content {n}"} for n in range(4)]
LINES: dict[str, list[tuple[Any, ...]]] = {
    "ms/collection.tsv": [(n, f"passage {n}") for n in NUMBERS],
    "ms/queries.train.tsv": [(n, f"question {n}") for n in range(6)],
    "ms/queries.dev.tsv": [(n, f"question {n}") for n in range(6, 12)],
    "ms/qrels.train.tsv": [(n, 0, n, 1) for n in range(6)],
    "ms/qrels.dev.tsv": [(n, 0, n, 1) for n in range(6, 12)],
    "ms/triplets.tsv": [(n, n, (n + 1) % 12) for n in range(6)],
    "lists/queries.txt": [("source", f"query {n}") for n in NUMBERS],
    "lists/terms.tsv": [("shoe", 2), ("red", 1)],
}
ANSWERS = {"answers.jsonl": lines(*({"_id": f"q{n}", "answers": [f"text {n}"]} for n in NUMBERS))}

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
    for position in range(len(fields)):
        for value in [*bad, comma, b"x" * 200_000]:
            yield b"\n".join([first, second, comma.join([*fields[:position], value, *fields[position + 1 :]]), *rest])


def of_bytes(content: bytes) -> Iterator[bytes]:
    """The content damaged in ways that any file can be."""
    middle = len(content) // 2
    lines = content.splitlines(keepends=True)
    yield from (b"", b"\n\n", b" \t \n", b"\0" * 100, b"\xff\xfe" + content, content[:middle], content[1:])
    yield from (b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), content.replace(b"\n", b"\r"))
    yield from (content + b"\xff\xfe\n", content + b"\0\n", content + lines[-1], content * 2, content.rstrip(b"\n"))
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
    archive = gzip.compress(content)
    yield from (content, b"", archive[:-9], archive[: len(archive) // 2], archive[:-8] + b"\0" * 8, archive + b"x")
    yield archive * 2
    yield archive[:30] + bytes([archive[30] ^ 255]) + archive[31:]


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


KINDS: dict[str, Callable[[SourceData], int]] = {
    "toy/corpus": lambda data: len(data.documents),
    "toy/collection": lambda data: len(data.documents),
    "toy/queries.": lambda data: len(data.queries) + sum(data.facts.get("queries_left_out", {}).values()),
    "toy/answers": lambda data: len(data.answers),
    "toy/qrels": lambda data: (
        sum(row.grade > 0 for row in data.judgements) + int(data.facts.get("judgements_not_relevant", 0))
    ),
    "toy/path/": lambda data: data.impressions.num_rows + sum(data.facts["impressions_left_out"].values()),
    "toy/relevance/": lambda data: data.relevance.num_rows + int(data.facts.get("relevance_pairs_repeated", 0)),
}
"""By the begin of a source's name: rows that it made use of, or says that it left out by rule."""


def check(data: SourceData, rejects: Rejects) -> None:
    """Of every kind of rows: used + rejected = read."""
    rejected, rows_read, not_used = Counter[str](), Counter[str](), Counter[str]()
    for (source, _), count in rejects._counts.items():
        rejected[source] += count
    for source, count in rejects._rows_read.items():
        assert rejected[source] <= count
        for kind in filter(source.startswith, KINDS):
            rows_read[kind] += count
            not_used[kind] += rejected[source]
    for kind in rows_read:
        assert KINDS[kind](data) + not_used[kind] == rows_read[kind], (kind, rejects._counts, data.facts)


def lines_in(name: str, content: bytes) -> int | None:
    """How many rows a file has, counted otherwise than the readers do; None where its format makes that hard."""
    if name.endswith((".csv", ".parquet")) or name.startswith(("log.", "scores.t")):
        return None
    if content.startswith(b"\xff\xfe") and b"\0" in content[2:]:
        content = content[2:].decode("utf-16-le").encode()
    lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    header = lines[:1] and lines[0].split(b"\t")[0].strip(b" \xff\xfe").lower() in (b"query-id", b"query_id", b"qid")
    return len(lines) - int(bool(header and content.removeprefix(b"\xef\xbb\xbf").split(b"\n")[0] == lines[0]))


TABLES: dict[str, tuple[list[dict[str, Any]], Callable[..., Any], str, list[str]]] = {
    "log": (LOG, click_log, "path", ["jsonl", "csv", "tsv", "parquet"]),
    "corpus": (CORPUS, click_log, "corpus", ["jsonl", "csv"]),
    "scores": (SCORES, click_log, "scores", ["jsonl", "tsv", "parquet"]),
    "searches": (SEARCHES, ubi, "queries", ["jsonl", "parquet"]),
    "events": (EVENTS, ubi, "events", ["jsonl", "parquet"]),
}
BEIR = ("corpus.jsonl", "queries.jsonl", "answers.jsonl", "qrels/test.tsv", "qrels/train.tsv")
READERS: dict[str, Callable[[Path], tuple[SourceData, Rejects]]] = {f"beir/{name}": beir for name in BEIR}
READERS |= {name: triplets if name.startswith("ms/") else lists for name in LINES}
READERS |= {
    f"log/{name}.{form}": partial(read, **{place: f"{name}.{form}"})
    for name, (_, read, place, forms) in TABLES.items()
    for form in forms
}


def lay_out(folder: Path) -> None:
    """Sound files of all kinds."""
    sound_folder(folder / "beir", ANSWERS)
    for name, values in LINES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("".join("\t".join(map(str, value)) + "\n" for value in values))
    for name, (table, *_, forms) in TABLES.items():
        for form in forms:
            write(folder / f"log/{name}.{form}", table)


def survives(name: str, folder: Path, content: bytes) -> bool:
    """Whether a file could be read; it is the only one that may be at fault, and no error but ours may say so."""
    (folder / name).write_bytes(content)
    try:
        data, rejects = READERS[name](folder / name.split("/")[0])
    except UserError as error:
        assert str(error)
        return False
    check(data, rejects)
    of_file = sum(count for source, count in rejects._rows_read.items() if source.endswith(f"/{Path(name).name}"))
    expected = lines_in(Path(name).name, content)
    assert expected is None or of_file == expected
    return True


@pytest.mark.parametrize("name", READERS)
def test_bad_input_costs_its_rows_or_says_what_is_wrong(
    name: str, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    lay_out(tmp_path)
    content = (tmp_path / name).read_bytes()
    assert survives(name, tmp_path, content)
    for bad in damaged(name, content):
        survives(name, tmp_path, bad)
        record_property("cases", 1)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_damaged_gzip_is_one_line(name: str, tmp_path: Path, record_property: Callable[..., None]) -> None:
    content = (sound_folder(tmp_path) / name).read_bytes()
    (tmp_path / name).unlink()
    for packed_content in packed(content):
        (tmp_path / f"{name}.gz").write_bytes(packed_content)
        record_property("cases", 1)
        try:
            check(*beir(tmp_path))
        except UserError as error:
            assert str(tmp_path) in str(error)


def test_a_line_without_end_is_passed_over_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_LINE", 1000)
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n' + b"x" * 10_000 + b'\n{"a": 2}\n' + b"y" * 1001)
    lines_read = list(read_lines(tmp_path / "x.jsonl"))
    assert [(line, type(raw) is bytes) for line, raw in lines_read] == [(1, True), (2, False), (3, True), (4, False)]
    assert max(len(raw) for _, raw in lines_read) == 1000
    rejects = Rejects(1.0)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n" + "1," * 1000 + '\n"3\n4",5\n', encoding="utf-8")
    values = [row.values["a"] for row in TableFile(tmp_path / "x.csv", "s", {"a": "k"}, rejects).rows()]
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
    rows_read = TableFile(tmp_path / "x.csv", "s", {"a": "k"}, rejects).rows()
    assert [row.values["a"] for row in rows_read] == [f"{long}\n{long}"]
    assert [(row.line, row.reason) for row in rejects.rows] == [(4, "invalid_csv")]


def test_two_files_of_one_name_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    sound_folder(tmp_path, {"corpus.jsonl.gz": b""})
    with pytest.raises(UserError, match="lies beside it"):
        beir(tmp_path)
    (tmp_path / "corpus.jsonl.gz").unlink()
    (tmp_path / "qrels" / "train.tsv").unlink()
    os.mkfifo(tmp_path / "qrels" / "train.tsv")
    with pytest.raises(UserError, match="is not a file"):
        beir(tmp_path)
