"""Files of a real S3 server: only the window's partitions come over, by the environment's credentials, vectors too."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ingest_logs import ingest, params, rows_of, write

from slimtower.common import s3
from slimtower.common.errors import UserError
from steps.ingest import locations
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import listing, locate, reading_only
from steps.ingest.times import Window

NEEDED = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
MISSING = [name for name in NEEDED if not os.environ.get(name)]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(MISSING), reason=f"needs an S3 server: set {', '.join(MISSING)}"),
]
KEY = "ingest.sources[0].events"
DAYS = ("2026-01-30", "2026-01-31", "2026-02-01")


@pytest.fixture
def client() -> Any:
    """The client that ingest itself makes."""
    return s3.s3_client(KEY)


@pytest.fixture
def log(client: Any) -> Iterator[str]:
    """s3://<bucket of this test>/log with a file of 3 MiB in each of three partitions."""
    bucket = f"ingest-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    keys = [f"log/dt={day}/events.jsonl" for day in DAYS] + ["log/dt=2026-01-31/_SUCCESS", "logs/dt=2026-01-31/x.jsonl"]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=content(key))
    yield f"s3://{bucket}/log"
    for key in keys:
        client.delete_object(Bucket=bucket, Key=key)
    client.delete_bucket(Bucket=bucket)


def content(key: str) -> bytes:
    return b"" if key.endswith("_SUCCESS") else f"{key}\n".encode() * (3 * 2**20 // (len(key) + 1))


def cached(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "sources").rglob("*") if path.is_file())


def test_only_the_windows_partition_is_downloaded_and_the_listing_changes_with_an_object(
    log: str, client: Any, own_cache: Path
) -> None:
    before = listing(log, key=KEY, window=Window.of("2026-01-31", ""))
    assert [row["path"] for row in before] == [f"dt={day}/events.jsonl" for day in DAYS[1:]]
    assert all(len(row["etag"]) == 32 and row["bytes"] == len(content(f"log/{row['path']}")) for row in before)
    [file] = locate(log, key=KEY, window=Window.of("2026-02-01", ""))
    old = file.path
    assert file.name == "dt=2026-02-01/events.jsonl" and old.read_bytes() == content(f"log/{file.name}")
    bucket = log.split("/")[2]
    client.put_object(Bucket=bucket, Key="log/dt=2026-02-01/events.jsonl", Body=b"{}\n")
    after = listing(log, key=KEY, window=Window.of("2026-01-31", ""))
    assert after[0] == before[0] and after[1]["etag"] != before[1]["etag"] and after[1]["bytes"] == 3
    assert cached(own_cache) == [old]
    new = locate(log, key=KEY, window=Window.of("2026-02-01", ""))[0].path
    assert new.read_bytes() == b"{}\n" and old != new


def test_an_object_that_changes_after_the_listing_is_not_taken_for_the_listed_one(log: str, client: Any) -> None:
    bucket = log.split("/")[2]
    tree = locations._s3_tree(client, log, KEY)
    entry = tree.children("dt=2026-01-31/")[1][-1]
    assert entry.name == "dt=2026-01-31/events.jsonl"
    client.put_object(Bucket=bucket, Key=f"log/{entry.name}", Body=b"changed")
    path = locations._cached(client.meta.endpoint_url, tree.root, entry)
    with pytest.raises(Exception, match="changed while it was read"), s3.explained(f"{KEY}: {log}"):
        locations._download(client, tree.root, entry, path, fixed=False)
    assert not path.exists() and not list(path.parent.iterdir())


def test_a_wrong_secret_and_a_missing_bucket_are_user_errors(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"sources\[0\]\.events: s3://no-such-bucket-here/log: NoSuchBucket"):
        locate("s3://no-such-bucket-here/log", key=KEY)
    with pytest.raises(UserError, match=r"dt=2026-01-30/ to dt=2026-02-01/; move the window"):
        locate(log, key=KEY, window=Window.of("2027-01-01", ""))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UserError, match=rf"{KEY.replace('[', chr(92) + '[')}: {log}: .*check AWS_ACCESS_KEY_ID"):
        locate(log, key=KEY)
    with pytest.raises(UserError, match="check AWS_ACCESS_KEY_ID"):
        listing(log, key=KEY)


def test_vectors_of_documents_come_from_there(client: Any, own_cache: Path, tmp_path: Path) -> None:
    ids, vectors = [f"d{number}" for number in range(4)], np.random.default_rng(3).normal(size=(4, 8))
    bucket = f"vectors-{uuid.uuid4().hex[:12]}"
    np.save(tmp_path / "part.npy", vectors.astype(np.float32))
    (tmp_path / "ids.txt").write_text("".join(f"{doc_id}\n" for doc_id in ids))
    files = {"index/part.npy": tmp_path / "part.npy", "ids.txt": tmp_path / "ids.txt"}
    described = {"kind": "files", "path": f"s3://{bucket}/index", "ids": f"s3://{bucket}/ids.txt"}
    client.create_bucket(Bucket=bucket)
    try:
        for key, path in files.items():
            client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        rows = [{"_id": doc_id, "title": "", "text": f"text of {doc_id}"} for doc_id in reversed(ids)]
        write(tmp_path / "beir/corpus.jsonl", rows)
        source = {"name": "toy", "kind": "beir", "path": str(tmp_path / "beir")}
        checked = params(source, document_vectors={"toy": described})
        with reading_only(by_key(checked, list_sources(checked))):
            out = ingest(tmp_path, checked)
        order = [int(doc_id.removeprefix("toy/d")) for doc_id in rows_of(out, "corpus", "doc_id")]
        stored = np.load(out / "document_vectors/vectors.npy")
        np.testing.assert_array_equal(stored, vectors.astype(np.float32)[order])
    finally:
        for key in files:
            client.delete_object(Bucket=bucket, Key=key)
        client.delete_bucket(Bucket=bucket)
