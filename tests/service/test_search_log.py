"""The search log: what the service writes is what `ingest` reads."""

import json
import logging
import os
import shutil
import tracemalloc
from datetime import UTC, datetime
from functools import partial
from hashlib import file_digest
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError, NoCredentialsError
from faulty_s3 import FaultyS3
from ingest_logs import from_recipe, ingest, params, reasons
from serve_fakes import CONSENT, open_client, settings

from slimtower.common.errors import TransientError, UserError, line
from slimtower.common.files import read_json, sha256_file
from slimtower.service.app import _new_corpus
from slimtower.service.corpus import Corpus
from slimtower.service.log_store import FolderLogStore, Lines, LogStore, S3LogStore, log_store
from slimtower.service.search_log import Client, SearchLog, _corpus_lines, write_corpus
from slimtower.service.settings import SALT, VARIABLE, Settings
from slimtower.service.telemetry import Metrics
from steps.core.tables import SCHEMAS, read_table, write_table

DAY = 24 * 3600
FAILURES = (TransientError("no space"), RuntimeError("red shoes: whatever a client comes up with"))
START = datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp()
SOMEONE = Client("id someone", "192.0.2.1")


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def open_log(store: LogStore, clock: Clock, metrics: Metrics | None = None, **changes: Any) -> SearchLog:
    return SearchLog(store, settings(Path("release"), **changes), metrics or Metrics(), clock)


def note(log: SearchLog, text: str, ids: list[str], number: int = 0, dataset: str = "one") -> list[str]:
    query_id = f"q{number}"
    log.search(query_id, SOMEONE, text, dataset, ids, {"system": "2l"})
    return log.tokens(query_id, dataset, ids)


def rows(root: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted(root.glob(f"*/{kind}/dt=*/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_day_is_a_partition_and_no_file_is_written_twice(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(FolderLogStore(tmp_path), clock)
    (token, _) = note(log, "red shoes", ["one/1", "one/2"])
    log.flush()
    first = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    clock.now += DAY / 2 + 7200  # the next day
    log.click("q0", SOMEONE, "one", "one/1", 1, token)
    note(log, "hat", ["one/3"], 1)
    log.flush()
    assert {path: path.read_bytes() for path in first} == first
    names = sorted(path.relative_to(tmp_path).parent.as_posix() for path in tmp_path.rglob("*.jsonl"))
    assert names == ["one/events/dt=2026-01-02", "one/queries/dt=2026-01-01", "one/queries/dt=2026-01-02"]
    (event,) = rows(tmp_path, "events")
    assert event["event_attributes"]["object"]["object_id"] == "1"  # as the data set's own corpus has it
    assert event["client_id"] == rows(tmp_path, "queries")[0]["client_id"]
    assert "someone" not in json.dumps([event, *rows(tmp_path, "queries")])
    assert open_log(FolderLogStore(tmp_path), clock, salt="other").client_id("id someone") != event["client_id"]


def test_a_click_on_what_was_not_shown_or_out_of_time_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(FolderLogStore(tmp_path), clock)
    token = note(log, "red shoes", ["one/1", "one/2"])[0]
    click: dict[str, Any] = {"query_id": "q0", "dataset": "one", "doc_id": "one/1", "rank": 1, "token": token}
    for seconds in (-300, DAY - 1):
        clock.now = START + seconds
        assert log.click(client=SOMEONE, **click)
    alternatives = {"query_id": ["q1"], "doc_id": ["one/2"], "rank": [2], "dataset": ["two"], "token": ["1.abc", "ü"]}
    wrong = [({name: value}, 0) for name, values in alternatives.items() for value in values]
    for changes, later in [*wrong, ({}, DAY), ({}, -301)]:  # the last by the clock of the replica that searched
        clock.now = START + later
        with pytest.raises(UserError, match="click: "):
            log.click(client=SOMEONE, **click | changes)


def test_days_before_the_retention_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(FolderLogStore(tmp_path), clock, retention_days=30)
    note(log, "red shoes", ["one/1"])
    log.flush()
    foreign_file = tmp_path / "one/queries/dt=2026-01-01/someone_elses.jsonl"
    foreign_file.write_text("{}\n")
    killed = foreign_file.with_name(".staging.slimtower-100000-0a.jsonl.17.0badcafe")  # as `staged_file` leaves it
    killed.write_text("{}\n")
    clock.now += 30 * DAY
    note(log, "hat", ["one/2"], 1)
    log.flush()
    log.tidy()
    assert len(rows(tmp_path, "queries")) == 3
    clock.now += DAY
    log.tidy()
    assert sorted(path.parent.name for path in tmp_path.rglob("*.jsonl*")) == ["dt=2026-01-01", "dt=2026-01-31"]
    assert foreign_file.is_file() and not killed.exists()


@pytest.mark.parametrize(("ahead", "writes"), [(31, False), (4000, True)])
def test_a_clock_that_is_ahead_does_not_empty_the_log_whether_it_writes_or_not(
    ahead: int, writes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    log = open_log(FolderLogStore(tmp_path), clock, retention_days=30)
    for text in ("red shoes", "hat"):
        note(log, text, ["one/1"])
        log.flush()
        clock.now += DAY
    clock.now += (ahead - 1) * DAY
    if writes:
        note(log, "coat", ["one/1"])
        log.flush()
    log._tidy_daily()
    assert len(rows(tmp_path, "queries")) == 2 + writes
    assert len(caplog.records) == 1


def test_days_that_could_not_be_listed_are_deleted_at_the_next_turn(tmp_path: Path) -> None:
    clock, store = Clock(), FolderLogStore(tmp_path)
    log = open_log(store, clock, retention_days=1)
    for _ in range(3):
        note(log, "red shoes", ["one/1"])
        log.flush()
        clock.now += DAY
    listed = store.names
    for answer in (*(lambda error=error: (_ for _ in ()).throw(error) for error in FAILURES), listed):
        store.names = answer  # type: ignore[method-assign]
        log._tidy_daily()
    assert [path.parent.name for path in tmp_path.rglob("*.jsonl")] == ["dt=2026-01-03"]


class Flaky:
    """A store that fails when told to."""

    def __init__(self, error: Exception) -> None:
        self.files: dict[str, str] = {}
        self.fails, self.error = True, error

    def write(self, name: str, text: str) -> None:
        if self.fails:
            raise self.error
        self.files[name] = text


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the service logs, too."""
    monkeypatch.setattr(logging.getLogger("slimtower"), "propagate", True)
    return caplog


@pytest.mark.parametrize("error", FAILURES)
def test_what_a_store_refuses_is_written_later_and_no_click_before_its_search(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky(error)
    log = open_log(store, Clock())  # type: ignore[arg-type]
    token = note(log, "red shoes", ["one/1"])[0]
    log.click("q0", SOMEONE, "one", "one/1", 1, token)
    log.flush()
    assert store.files == {}
    assert "red shoes" not in str([record.__dict__ for record in caplog.records]) and len(caplog.records) == 1
    store.fails = False
    note(log, "hat", ["one/2"], 1)
    log.close()
    assert [name.split("/")[1] for name in store.files] == ["queries", "events"]
    assert [json.loads(line)["query_id"] for line in next(iter(store.files.values())).splitlines()] == ["q0", "q1"]


def test_long_queries_fill_the_room_of_many_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimtower.service.search_log._LETTERS", 25_000)
    store = Flaky(FAILURES[0])
    log = open_log(store, Clock())  # type: ignore[arg-type]

    def logged(address: str, text: str) -> bool:
        return log.search("q", Client("id", address), text, "one", ["one/1"], {})

    assert [logged("a", "x" * 1000) for _ in range(3)] == [True, True, False]
    assert [logged(f"other {n}", "x" * 2000) for n in range(12)].count(True) == 10, (
        "as many letters as there is room for"
    )
    store.fails = False
    log.flush()
    assert logged("a", "x" * 1000)
    log.close()


def test_one_address_leaves_room_for_others_and_what_is_dropped_is_told_once_a_flush(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slimtower.service.search_log._WAITING", 5)
    monkeypatch.setattr("slimtower.service.search_log._OF_ONE", 2)
    store, metrics = Flaky(FAILURES[0]), Metrics()
    log = open_log(store, Clock(), metrics=metrics)  # type: ignore[arg-type]

    def logged(address: str) -> list[bool]:
        names = ("id one", "id two", "id three")  # nobody has more room for calling itself otherwise
        return [log.search("q", Client(name, address), "hat", "one", ["one/1"], {}) for name in names]

    assert [logged(address) for address in "abc"] == [[True, True, False], [True, True, False], [True, False, False]]
    log.flush()
    assert logged("c") == [False] * 3  # what was not written still waits
    store.fails = False
    for _ in range(2):
        log.flush()
    assert logged("c") == [True, True, False]
    log.close()
    assert sum(len(text.splitlines()) for text in store.files.values()) == 7
    dropped = [record.__dict__["data"]["dropped"] for record in caplog.records if record.message == "search log full"]
    assert dropped == [4, 3, 1]
    assert "slimtower_log_dropped_total 8.0" in metrics.text([])


def write_documents(folder: Path, contents: list[str]) -> None:
    """A corpus of one data set."""
    rows = [
        {"doc_id": f"one/{number}", "dataset": "one", "title": f"Title {number}", "topic": "", "content": content}
        for number, content in enumerate(contents)
    ]
    write_table(folder, "corpus", pa.Table.from_pylist(rows, schema=SCHEMAS["corpus"]))


@pytest.mark.parametrize("error", FAILURES)
def test_a_corpus_that_could_not_be_written_is_written_after_a_later_flush(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path / "corpus", ["Red hats."])
    store, metrics = FolderLogStore(tmp_path / "log"), Metrics()
    log, keep, tries = open_log(store, Clock(), metrics=metrics), store.keep, list[str]()

    def fails_twice(name: str, lines: Lines) -> None:
        tries.append(name)
        if len(tries) < 3:
            raise error
        keep(name, lines)

    monkeypatch.setattr(store, "keep", fails_twice)
    students = [SimpleNamespace(release=SimpleNamespace(datasets=("one",)))]
    service: Any = SimpleNamespace(log=log, students=students, corpus=Corpus(str(tmp_path / "corpus"), 10))
    _new_corpus(service)
    assert len(tries) == 1
    for _ in range(3):
        log._turn()
    assert tries == ["one/corpus.jsonl"] * 3  # and no more once it is there
    assert json.loads((tmp_path / "log/one/corpus.jsonl").read_text())["content"] == "Red hats."
    assert "slimtower_log_failures_total 2.0" in metrics.text([])


@pytest.mark.medium
def test_an_answer_says_of_each_query_and_click_whether_there_was_room_for_it(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slimtower.service.search_log._OF_ONE", 1)
    client, _ = open_client(released / "models/release/static", log=str(tmp_path), consent="given")
    with client:
        results = client.post("/search", json={"query": ["hat", "shoe"], "dataset": "one"}).json()["results"]
        outcomes = [(result["logged"], "click" in result["hits"][0]) for result in results]
        assert outcomes == [(True, True), (False, False)]
        hit = results[0]["hits"][0]
        click = {"query_id": results[0]["query_id"], "dataset": "one", "object_id": hit["id"], "position": 1}
        click["click"] = hit["click"]
        assert [client.post("/events", json=click).json() for _ in range(2)] == [{"logged": True}, {"logged": False}]


class Discarding:
    """An S3 client that keeps of each object its digest alone, and what was said of it."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, str, dict[str, str]]] = []

    def put_object(self, *, Bucket: str, Key: str, Body: Any, Metadata: dict[str, str]) -> None:
        self.puts.append((f"{Bucket}/{Key}", file_digest(Body, "sha256").hexdigest(), Metadata))

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        versions = [metadata for name, _, metadata in self.puts if name == f"{Bucket}/{Key}"]
        if not versions:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "HeadObject")
        return {"Metadata": versions[-1]}


@pytest.fixture
def large(tmp_path: Path) -> Corpus:
    """50,000 small documents, read already: each process holds the table in any case."""
    write_documents(tmp_path / "large", [f"Document {n}. " * 20 for n in range(50_000)])
    corpus = Corpus(str(tmp_path / "large"), 100)
    assert corpus.document("one/0")
    return corpus


@pytest.mark.slow
@pytest.mark.parametrize("on_s3", [False, True])
def test_a_corpus_is_written_once_and_in_little_memory(
    on_s3: bool, large: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    target, client = tmp_path / "log/one/corpus.jsonl", Discarding()
    store: LogStore = S3LogStore("s3://logs", client) if on_s3 else FolderLogStore(tmp_path / "log")
    import_module("boto3.exceptions")  # S3's client stays, and is none of the corpus
    peaks, written = [], []
    tracemalloc.start()
    try:
        for _ in range(2):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            write_corpus(store, large, ["one", "none"])
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            written.append(len(client.puts) if on_s3 else target.stat().st_ino)
    finally:
        tracemalloc.stop()
    FolderLogStore(tmp_path / "log").keep("one/corpus.jsonl", partial(_corpus_lines, large, "one"))
    assert max(peaks) < target.stat().st_size / 4
    assert written[0] == written[1]
    if on_s3:
        digest = sha256_file(target)
        assert client.puts == [("logs/one/corpus.jsonl", digest, {"sha256": digest})]
    rows = [json.loads(text) for text in target.open(encoding="utf-8")]
    assert [row["doc_id"] for row in rows] == [str(n) for n in range(50_000)]
    write_table(tmp_path / "large", "corpus", read_table(tmp_path / "large", "corpus").slice(0, 3))
    write_corpus(store, large, ["one"])
    assert len(client.puts) == 2 if on_s3 else len(target.read_text(encoding="utf-8").splitlines()) == 3
    assert not any((tmp_path / "cache/serve").glob("*"))


def test_what_cannot_be_written_at_the_end_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    metrics = Metrics()
    log = open_log(FolderLogStore(tmp_path / "file"), Clock(), metrics=metrics)
    for dataset in ("one", "two"):
        note(log, "red shoes", ["one/1"], dataset=dataset)
    log.close()
    assert "slimtower_log_dropped_total 2.0" in metrics.text([])


def test_the_salt_reaches_other_processes_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, SALT):  # to be put back
        monkeypatch.setenv(name, "")
    configured = settings(Path("release"), salt="drawn-at-the-start")
    configured.to_environment()
    assert Settings.from_environment() == configured
    assert "drawn-at" not in os.environ[VARIABLE]
    assert line(UserError(f"not {os.environ[SALT]}")) == "not ***"


def answered(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


TOKEN = "planted-session-token/" * 30  # as long as real ones
LINE_END = f"{TOKEN}\n".encode()


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (answered("Forbidden", 403), False),
        (answered("ExpiredToken", 400), False),
        (answered("400", 400), False),  # to HEAD
        (answered("NoSuchBucket", 404), False),
        (answered("RequestTimeTooSkewed", 403), False),
        (NoCredentialsError(), False),
        (HTTPClientError(error=ValueError(f"Invalid header value {LINE_END!r}")), False),
        (answered("SlowDown", 503), True),
        (EndpointConnectionError(endpoint_url=f"http://host/?{TOKEN}"), True),
    ],
)  # fmt: skip
def test_what_s3_refuses_is_told_without_secrets_and_tried_again_where_that_may_help(
    error: Exception, transient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{TOKEN}\n")
    with pytest.raises(UserError, match="gs://logs"):
        log_store("gs://logs")
    with pytest.raises(UserError, match=r"search log: s3://logs: ") as caught:
        S3LogStore("s3://logs/site", Mock(put_object=Mock(side_effect=error))).write("one", "text")
    assert isinstance(caught.value, TransientError) is transient
    assert "planted" not in str(caught.value)


def test_an_address_of_s3_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no-address")
    with pytest.raises(UserError, match="AWS_ENDPOINT_URL"):
        S3LogStore("s3://logs/site").write("one", "text")


@pytest.mark.medium
def test_a_swap_brings_the_new_corpus_beside_the_log(released: Path, tmp_path: Path) -> None:
    project, root = tmp_path / "project", tmp_path / "log"
    for part in ("models/release/static", "data/ingest"):
        shutil.copytree(released / part, project / part)
    client, service = open_client(project / "models/release", log=str(root), poll_s=3600.0)
    with client:
        first = (root / "one/corpus.jsonl").read_text()
        corpus = read_table(project / "data/ingest", "corpus")
        write_table(project / "data/ingest", "corpus", corpus.slice(0, corpus.num_rows - 1))
        service.watcher.refresh()
        unchanged = [(root / f"{name}/corpus.jsonl").read_text() for name in ("one", "two")]
        shutil.copytree(released / "models/release/2l", project / "models/release/2l")
        service.watcher.refresh()
        swapped = [(root / f"{name}/corpus.jsonl").read_text() for name in ("one", "two")]
    assert unchanged[0] == first
    assert sum(map(len, swapped)) < sum(map(len, unchanged))


@pytest.mark.medium
def test_a_release_outside_of_a_project_has_the_corpus_that_it_is_given(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Path(shutil.copytree(released / "models/release/static", tmp_path / "downloaded"))
    corpus, client = read_table(released / "data/ingest", "corpus"), FaultyS3()
    key, location = "logs/site/corpus.parquet", "s3://logs/site"
    for name, value in {"ENDPOINT_URL": client.url, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client.objects[key] = (released / "data/ingest/corpus.parquet").read_bytes()
    opened, service = open_client(release, corpus=location, log=str(tmp_path / "log"), poll_s=3600.0)
    with opened:
        hit = opened.get("/search", params={"q": "matrix", "dataset": "one"}).json()["results"][0]["hits"][0]
        assert "Computes the" in hit["snippet"]
        written = [json.loads(text)["content"] for text in (tmp_path / "log/one/corpus.jsonl").open()]
        assert sorted(written) == sorted(row["content"] for row in corpus.to_pylist() if row["dataset"] == "one")
        write_table(tmp_path, "corpus", corpus.slice(0, 1))
        client.objects[key] = (tmp_path / "corpus.parquet").read_bytes()
        service.watcher.swapped()
        assert sum(len((tmp_path / f"log/{name}/corpus.jsonl").open().readlines()) for name in ("one", "two")) < 64
    assert [path.name for path in tmp_path.rglob("corpus.parquet")] == ["corpus.parquet"] * 3
    for nothing in (tmp_path / "downloaded", tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"holds no corpus\.parquet"):
            open_client(release, corpus=str(nothing))
    del client.objects[key]
    with pytest.raises(UserError, match=r"no object site/corpus\.parquet"):
        open_client(release, corpus=location)
    client.shutdown()
    client.server_close()


@pytest.mark.medium
def test_what_the_service_logged_is_ingested_as_it_is(released: Path, tmp_path: Path) -> None:
    root = tmp_path / "log"
    client, _ = open_client(released / "models/release", log=str(root))
    texts = ["how to sum the axis", "string window", "matrix of graph", "file mean"]
    with client:
        assert client.get("/systems").json()["logging"] == "header"
        for text in texts:
            body = {"query": text, "dataset": "one", "k": 4}
            unlogged = [
                client.post("/search", json=body),
                client.post("/search", json=body | {"log": False}, headers=CONSENT),
                client.post("/search", json=body, headers=CONSENT | {"Sec-GPC": "1"}),
            ]
            assert not any(answer.json()["results"][0]["logged"] for answer in unlogged)
            result = client.post("/search", json=body, headers=CONSENT).json()["results"][0]
            hit = result["hits"][1]
            click = {"query_id": result["query_id"], "dataset": "one", "object_id": hit["id"], "position": 2}
            click["click"] = hit["click"]
            assert client.post("/events", json=click, headers=CONSENT).status_code == 202
            assert client.post("/events", json=click).status_code == 422
            assert client.post("/events", json=click | {"position": 3}, headers=CONSENT).status_code == 422
    ids_by_query = {row["user_query"]: row["query_response_hit_ids"] for row in rows(root, "queries")}
    assert list(ids_by_query) == texts and all(len(hits) == 4 for hits in ids_by_query.values())

    out = ingest(tmp_path, params(from_recipe(root / "one")))
    assert reasons(out) == []
    log = read_table(out, "impressions").to_pylist()
    assert len(log) == 16
    clicked = [(row["doc_id"], row["rank"]) for row in log if row["clicked"]]
    assert sorted(clicked) == sorted((f"one/{hits[1]}", 2) for hits in ids_by_query.values())
    assert read_json(out / "report.json")
    served, documents = (
        {row["doc_id"]: row for row in read_table(folder, "corpus").to_pylist() if row["dataset"] == "one"}
        for folder in (released / "data/ingest", out)
    )
    assert documents == served and documents  # so the champion and its successor search the same
