"""Where files lie: date partitions outside the window are neither listed nor downloaded, local or on S3."""

import hashlib
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_s3 import FaultyS3
from ingest_logs import click_log, impression, ingest, params, rows_of

from slimtower.common.errors import TransientError, UserError
from steps.ingest import locations
from steps.ingest.kinds.beir import PATTERNS as BEIR
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import listing, local_folder, locate, reading_only
from steps.ingest.table_rows import PATTERNS
from steps.ingest.times import Window

KEY = "ingest.sources[0].path"


DAYS = ("2026-01-30", "2026-01-31", "2026-02-01")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A local log of three days with markers, a hidden file, another format and one file without a date."""
    names = [f"dt={day}/part-{n}.jsonl" for day in DAYS for n in (1, 0)]
    names += ["dt=2026-01-31/_SUCCESS", "_temporary/0.jsonl", ".crc/x.jsonl", "dt=2026-01-31/.part.jsonl"]
    for name in [*names, "always.jsonl", "dt=2026-01-31/notes.txt"]:
        path = tmp_path / "log" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "log"


def names_of(location: object, since: str = "", until: str = "", patterns: tuple[str, ...] = ()) -> list[str]:
    return [file.name for file in locate(str(location), key=KEY, window=Window.of(since, until), patterns=patterns)]


def test_the_window_holds_its_first_day_and_not_its_last(folder: Path) -> None:
    of_the_31st = [
        "always.jsonl", "dt=2026-01-31/notes.txt", "dt=2026-01-31/part-0.jsonl", "dt=2026-01-31/part-1.jsonl",
    ]  # fmt: skip
    assert names_of(folder, "2026-01-31", "2026-02-01") == of_the_31st
    assert names_of(folder, "2026-01-31T23:00", "2026-01-31T23:30") == of_the_31st  # a day partly inside is read
    assert names_of(folder, patterns=("*.txt",)) == ["dt=2026-01-31/notes.txt"]
    assert names_of(folder, "2026-02-01", patterns=("*.jsonl",))[1:] == [
        f"dt=2026-02-01/part-{n}.jsonl" for n in (0, 1)
    ]
    located = locate(str(folder), key=KEY)
    assert len(located) == 8
    assert all(file.path == folder / file.name and file.path.is_file() for file in located)


def test_files_of_no_format_that_is_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    rows = [impression(f"query {n}", n, clicked=True) for n in range(7)]
    source = click_log(tmp_path, rows[:4], "log/2026-01-01.jsonl") | {"path": str(log)}
    click_log(tmp_path, rows[4:], "more.jsonl.gz")
    (tmp_path / "more.jsonl.gz").rename(log / "2026-01-04.JSONL.GZ")
    for name in ("2026-01-02.jsonl.zst", "2026-01-03.json", "2026-01-05.json.gz", "2026-02-01.json"):
        (log / name).write_text("rows")
    for name in ("_SUCCESS", ".x.json", "README", "MD5SUMS", "2026-01-01.jsonl.sha256", "notes.md"):
        (log / name).write_text("no data")
    (log / "marker").touch()
    checked = params(source, until="2026-01-20")
    listed = list_sources(checked)
    assert [row["path"] for row in listed[1:]] == ["path/2026-01-01.jsonl", "path/2026-01-04.JSONL.GZ"]
    warning = f"{log}: 3 files are of no format that is read, such as 2026-01-02.jsonl.zst"
    assert warning in capsys.readouterr().err
    with reading_only(by_key(checked, listed)):
        out = ingest(tmp_path, checked)
    assert "no format" not in capsys.readouterr().err, "once a run"
    assert len(rows_of(out, "impressions", "query_id")) == 7


def test_faults_name_the_key_and_the_fix(folder: Path) -> None:
    (folder / "always.jsonl").unlink()
    with pytest.raises(UserError, match=r"sources\[0\]\.path: .* from dt=2026-01-30/ to dt=2026-02-01/"):
        names_of(folder, "2027-01-01")
    with pytest.raises(UserError, match=r"holds no file that matches \*\.parquet"):
        names_of(folder, patterns=("*.parquet",))
    with pytest.raises(UserError, match="is neither local nor on s3://"):
        names_of("gs://bucket/log")
    for unheard in ("a\0b", "caf\udce9", "x" * 300):
        with pytest.raises(UserError, match="no file or folder"):
            names_of(unheard)
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jsonl")).touch()
    with pytest.raises(UserError, match="is not UTF-8; rename it"):
        names_of(folder)


def test_loops_of_links_do_not_multiply_a_log(folder: Path) -> None:
    expected = ["above/beside.txt", *names_of(folder)]
    (folder / "loop").symlink_to(".")
    (folder / "dt=2026-01-31/up").symlink_to("..")
    (folder / "dt=2026-01-31/again").symlink_to(folder / "dt=2026-01-30", target_is_directory=True)
    (folder / "dt=2026-01-31/twice.jsonl").symlink_to("part-0.jsonl")
    (folder / "above").symlink_to(folder.parent)
    (folder.parent / "beside.txt").write_text("outside, but linked to")
    rows = listing(str(folder), key=KEY)
    assert names_of(folder) == [row["path"] for row in rows] == expected
    with reading_only({KEY: rows}):
        assert names_of(folder) == expected


def test_links_to_what_lies_elsewhere_are_followed_once(tmp_path: Path) -> None:
    for name in ("store/a/x.jsonl", "store/b.jsonl", "log/.store/c/y.jsonl", "log/real/z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    log = tmp_path / "log"
    for name, target in {
        "dt=2026-01-31": "../store/a",
        "dt=2026-02-01": "../store/a",  # a second name for the same folder
        "b.jsonl": "../store/b.jsonl",
        "copy-of-b.jsonl": "b.jsonl",  # a link to a link
        "c": ".store/c",  # what is hidden has no other name here
        "aaa": "real",
        "aaa.jsonl": "real/z.jsonl",
    }.items():
        (log / name).symlink_to(target)
    assert names_of(log) == ["b.jsonl", "c/y.jsonl", "dt=2026-01-31/x.jsonl", "real/z.jsonl"]
    assert names_of(log, "2026-02-01")[2:] == ["dt=2026-02-01/x.jsonl", "real/z.jsonl"]
    (tmp_path / "whole").symlink_to(log)
    assert names_of(tmp_path / "whole") == names_of(log)
    assert all(file.path.read_text() for file in locate(str(log), key=KEY))


@pytest.mark.parametrize("target", ["nowhere", "gone/dt=2026-01-31", "itself"])
def test_a_link_to_nothing_is_an_error_where_it_could_be_data(folder: Path, target: str) -> None:
    before = names_of(folder)
    (folder / ".hidden").symlink_to(target)
    assert names_of(folder) == before
    (folder / "dt=2026-01-29").symlink_to(target)
    (folder / "dt=2026-01-29.jsonl").symlink_to(target)
    assert names_of(folder, "2026-01-30") == before  # not in the window
    (folder / "itself").symlink_to("itself" if target == "itself" else target)
    message = rf"ingest\.sources\[0\]\.path: {folder}/itself is a link to nothing.*would be missing; fix or remove it"
    for function in (locate, listing):
        with pytest.raises(UserError, match=message):
            function(str(folder), key=KEY, window=Window.of("2026-01-30", ""), patterns=("*.jsonl",))


def test_what_came_after_the_listing_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {KEY: listing(str(folder), key=KEY)}
    before = names_of(folder)
    (folder / "dt=2026-01-31/late.jsonl").write_text("late")
    assert names_of(folder) != before
    with reading_only(listed):
        assert names_of(folder) == before
    assert "1 files came after sources.json was written and are left out" in capsys.readouterr().err
    assert "dt=2026-01-31/late.jsonl" in names_of(folder)


def test_what_is_not_as_it_was_listed_is_refused(folder: Path) -> None:
    listed = {KEY: listing(str(folder), key=KEY)}
    path = folder / "always.jsonl"
    path.write_text(path.read_text().upper())  # of the same size
    with reading_only(listed):
        with pytest.raises(UserError, match=rf"^{path} changed since the run began; start a new run$"):
            names_of(folder)
        with pytest.raises(UserError, match=r"^sources\.json: not the files of"):  # the window moved on
            names_of(folder, "2026-01-31")
        path.unlink()
        with pytest.raises(UserError, match=rf"^{path} is gone since the run began; start a new run$"):
            names_of(folder)
    with reading_only({}), pytest.raises(UserError, match=r"sources.json: .*write it anew"):
        names_of(folder)


def test_a_data_set_is_read_as_it_was_listed(folder: Path) -> None:
    patterns = ("*.jsonl",)
    with reading_only({KEY: listing(str(folder), key=KEY, patterns=patterns)}):
        with local_folder(str(folder), KEY, patterns) as local:
            assert local == folder
        (folder / "late.jsonl").write_text("late")
        with local_folder(str(folder), KEY, patterns) as local:
            assert (local / "dt=2026-01-31/part-0.jsonl").read_text() == "dt=2026-01-31/part-0.jsonl"
            assert not (local / "late.jsonl").exists()


@pytest.fixture
def bucket(s3_server: FaultyS3) -> FaultyS3:
    """Three days of a log in s3://shop/log, a folder marker, a sibling whose name begins alike, and a corpus."""
    names = [f"log/year=2026/month=0{month}/day={day}/p{n}.csv" for month, day in ((1, 31), (2, 1)) for n in range(3)]
    names += ["log/year=2025/month=12/day=31/p0.csv", "log/year=2026/", "logs-of-others/x.csv", "corpus.jsonl.gz"]
    s3_server.objects |= {f"shop/{name}": b"" if name.endswith("/") else name.encode() for name in names}
    return s3_server


def downloaded(bucket: FaultyS3) -> list[str]:
    """Objects that were read since this was asked last."""
    names = sorted(request.removeprefix("GET /shop/") for request in bucket.asked if request.startswith("GET /shop/"))
    bucket.asked.clear()
    return names


def test_only_the_windows_partitions_of_s3_are_listed_and_downloaded(bucket: FaultyS3, own_cache: Path) -> None:
    days = Window.of("2026-02-01", "2026-02-02")
    day = "year=2026/month=02/day=1/"
    names = [f"{day}p{n}.csv" for n in range(3)]
    etags = [hashlib.md5(f"log/{name}".encode()).hexdigest() for name in names]
    assert listing("s3://shop/log", key=KEY, window=days) == [
        {"path": name, "bytes": len(f"log/{name}"), "etag": etag} for name, etag in zip(names, etags, strict=True)
    ]
    listed = " ".join(request for request in bucket.asked if "delimiter" in request)
    assert re.findall("prefix=(.*?)&", listed) == ["log/", "log/year=2026/", "log/year=2026/month=02/", f"log/{day}"]
    assert not downloaded(bucket)
    files = locate("s3://shop/log", key=KEY, window=days)
    assert [(file.name, file.path.read_text()) for file in files] == [(name, f"log/{name}") for name in names]
    assert all(file.path.is_relative_to(own_cache / "sources") and file.path.suffix == ".csv" for file in files)
    assert downloaded(bucket) == [f"log/{name}" for name in names]


def test_all_pages_of_a_listing_count() -> None:
    def row(name: str) -> dict[str, Any]:
        return {"Key": name, "Size": 1, "ETag": '"x"'}

    pages = [{"Contents": [row("log/a"), row("log/")]}, {"CommonPrefixes": [{"Prefix": "log/b/"}]}, {}]
    pages.append({"Contents": [row("log/c")]})
    client = SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=lambda **_: pages))
    children = locations._s3_children(client, "shop", "log/", "")
    assert children.folders == ["b/"] and [entry.name for entry in children.files] == ["a", "c"]


def test_an_object_is_downloaded_again_only_when_its_etag_changes(bucket: FaultyS3) -> None:
    def located() -> list[Path]:
        days = Window.of("2026-01-31", "2026-02-01")
        return [file.path for file in locate("s3://shop/log/", key=KEY, window=days)]

    before, _ = located(), downloaded(bucket)
    assert located() == before and not downloaded(bucket)
    changed = "log/year=2026/month=01/day=31/p1.csv"
    bucket.objects[f"shop/{changed}"] = b"new"
    after = located()
    assert downloaded(bucket) == [changed]
    assert after[1].read_text() == "new" and before[1].read_text() == changed
    after[2].write_bytes(b"")  # what a power failure may leave
    assert located()[2].stat().st_size and len(downloaded(bucket)) == 1


def test_objects_of_s3_are_read_as_they_were_listed(bucket: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    days = {"window": Window.of("2026-01-31", "2026-02-01")}
    listed = {KEY: listing("s3://shop/log", key=KEY, **days)}
    day = "shop/log/year=2026/month=01/day=31/"
    bucket.objects[f"{day}p9.csv"] = b"late"
    with reading_only(listed):
        assert [file.name[-6:] for file in locate("s3://shop/log", key=KEY, **days)] == ["p0.csv", "p1.csv", "p2.csv"]
        bucket.objects[f"{day}p1.csv"] = b"new"
        with pytest.raises(UserError, match=rf"^s3://{day}p1.csv changed since the run began; start a new run$"):
            locate("s3://shop/log", key=KEY, **days)
        del bucket.objects[f"{day}p1.csv"]
        with pytest.raises(UserError, match=rf"^s3://{day}p1.csv is gone since the run began; start a new run$"):
            locate("s3://shop/log", key=KEY, **days)

    fresh, download = {KEY: listing("s3://shop/corpus.jsonl.gz", key=KEY)}, locations._download

    def too_late(*args: Any, **kwargs: Any) -> None:
        bucket.objects["shop/corpus.jsonl.gz"] += b"."  # between the look and the download
        download(*args, **kwargs)

    monkeypatch.setattr(locations, "_download", too_late)
    with reading_only(fresh), pytest.raises(UserError, match=r"corpus\.jsonl\.gz changed since") as raised:
        names_of("s3://shop/corpus.jsonl.gz")
    assert not isinstance(raised.value, TransientError)
    with pytest.raises(TransientError, match="changed while it was read"):
        names_of("s3://shop/corpus.jsonl.gz")


def test_keys_with_an_empty_part_are_read(bucket: FaultyS3, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["old//a.csv", "old/b//dt=2026-01-01/c.CSV", "old//", "old//d.json"]
    keys += ["set/corpus.jsonl", "set/qrels//test.tsv", "set/qrels/test.tsv"]
    bucket.objects |= {f"shop/{key}": b"x" for key in keys}
    files = locate("s3://shop/old", key=KEY, patterns=PATTERNS)
    assert [(file.name, file.path.read_text()) for file in files] == [("/a.csv", "x"), ("b//dt=2026-01-01/c.CSV", "x")]
    assert "s3://shop/old: 1 files are of no format that is read, such as /d.json" in capsys.readouterr().err
    assert names_of("s3://shop/old", "2026-01-02") == ["/a.csv", "/d.json"]
    assert names_of("s3://shop/set", patterns=BEIR) == ["corpus.jsonl", "qrels/test.tsv"]


@pytest.mark.medium
def test_an_endpoint_that_nobody_answers_and_missing_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    for name, value in (here | {"AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:9"):
        names_of("s3://shop/log")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "no url")
    with pytest.raises(UserError, match="AWS_ENDPOINT_URL"):
        names_of("s3://shop/log")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    with pytest.raises(UserError, match="set AWS_ACCESS_KEY_ID"):
        names_of("s3://shop/log")
