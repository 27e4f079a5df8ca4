"""Files by key in a folder or in S3, as `begin`, stages and `publish` use them; refusals and absences told apart."""

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from pipeline.task import run_store
from pipeline.task.run_store import FolderStore, S3Store, open_store
from slimtower.common.errors import TransientError, UserError


def test_a_folder_gives_back_what_it_was_given(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "remote"))
    assert isinstance(store, FolderStore)
    assert store.read("runs/a/begin.json") is None and store.names("runs/a/locks") == []
    store.write("runs/a/locks/teach.yaml", b"one")
    store.write("runs/a/locks/distill@2l.yaml", b"two")
    store.write("runs/a/locks/teach.yaml", b"three")
    store.write("runs/a/locks/deeper/x.yaml", b"")
    (tmp_path / "remote/runs/a/locks/.staging.x.1").write_bytes(b"half")  # of a writer that was killed
    assert store.names("runs/a/locks") == ["distill@2l.yaml", "teach.yaml"]
    assert store.read("runs/a/locks/teach.yaml") == b"three"
    assert store.holds("runs/a/locks/teach.yaml") and not store.holds("runs/a/locks")


@pytest.mark.parametrize("remote", ["", "remote", "./remote", "s3://", "s3:///"])
def test_another_place_is_a_user_error(remote: str) -> None:
    with pytest.raises(UserError, match=r"SLIMTOWER_REMOTE is .*; give s3://bucket/prefix or the absolute path"):
        open_store(remote)


def test_an_absent_object_is_none_and_a_refused_one_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = boto3.client("s3", region_name="x", aws_access_key_id="a", aws_secret_access_key="b")
    stubbed = Stubber(client)
    stubbed.activate()
    monkeypatch.setattr(run_store, "s3_client", lambda where: client)
    store = open_store("s3://bucket/a/")
    assert isinstance(store, S3Store) and not store.url.endswith("/")
    stubbed.add_client_error("get_object", "NoSuchKey", http_status_code=404)
    assert store.read("x") is None
    stubbed.add_client_error("head_object", "404", http_status_code=404)
    assert not store.holds("x")
    stubbed.add_client_error("get_object", "SignatureDoesNotMatch", http_status_code=403)
    with pytest.raises(UserError, match=r"SLIMTOWER_REMOTE: s3://bucket/a: .*check AWS_ACCESS_KEY_ID") as refused:
        store.read("x")
    stubbed.add_client_error("head_object", "403", http_status_code=403)
    with pytest.raises(UserError, match="check AWS_ACCESS_KEY_ID"):
        store.holds("x")
    stubbed.add_client_error("get_object", "NoSuchBucket", http_status_code=404)
    with pytest.raises(UserError, match="NoSuchBucket"):
        store.read("x")
    stubbed.add_client_error("put_object", "SlowDown", http_status_code=503)
    with pytest.raises(TransientError, match="the server is busy"):
        store.write("x", b"")
    assert not isinstance(refused.value, TransientError)
