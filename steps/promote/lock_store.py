"""Where locks lie: small objects of which only one writer can be the first, in a folder or in an S3 bucket."""

import os
import tempfile
import uuid
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

import boto3
from botocore.exceptions import ClientError

from slimtower.common.errors import UserError

_LOST = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


@dataclass(frozen=True)
class Entry:
    """What an object says, and its age in seconds by the clock of the place it lies in."""

    body: str
    age_s: float


class LockStore(Protocol):
    """A place for objects by key."""

    def put_new(self, key: str, body: str) -> bool:
        """Write an object unless the key is taken; tells whether it was written. Atomic among all writers."""

    def entries(self, name: str) -> dict[str, Entry]:
        """The objects whose keys are `<name>/<digits>`; others there are somebody else's, such as `.nfs...`."""

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""


class FolderLockStore:
    """A folder that all who take the lock can write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put_new(self, key: str, body: str) -> bool:
        """A hard link is made whole or not at all, and never over another file; what it names is on the disk before.

        On a file system without such links the file is made in its place: nobody else makes it, but a kill may cut it.
        """
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        written = self.folder / f".{uuid.uuid4().hex}"
        _write_new(written, body)
        try:
            path.hardlink_to(written)
        except FileExistsError:
            return False
        except OSError:
            try:
                _write_new(path, body)
            except FileExistsError:
                return False
        finally:
            written.unlink()
        return True

    def entries(self, name: str) -> dict[str, Entry]:
        """Files of the folder of that name; ages by the clock of the file system, which may be another machine's."""
        entries = {}
        paths = sorted(path for path in (self.folder / name).glob("*") if path.name.isdecimal())
        moment = self._clock() if paths else 0.0
        for path in paths:
            try:
                key = path.relative_to(self.folder).as_posix()
                entries[key] = Entry(path.read_text(encoding="utf-8", errors="replace"), moment - path.stat().st_mtime)
            except FileNotFoundError:  # released meanwhile
                continue
        return entries

    def _clock(self) -> float:
        with tempfile.NamedTemporaryFile(prefix=".now.", dir=self.folder) as probe:
            return Path(probe.name).stat().st_mtime

    def delete(self, key: str) -> None:
        """Unlink the file."""
        (self.folder / key).unlink(missing_ok=True)


def _write_new(path: Path, body: str) -> None:
    """Write a file that is not there, to the disk."""
    with path.open("x", encoding="utf-8") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


class S3LockStore:
    """A prefix of an S3 bucket; conditional puts (`If-None-Match: *`) decide who is first."""

    def __init__(self, url: str) -> None:
        bucket, _, self.root = url.removeprefix("s3://").partition("/")
        self.bucket, self.root = bucket, self.root.rstrip("/")
        try:
            self.api: Any = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL") or None)
        except ValueError as error:  # an endpoint without http://
            raise UserError(f"{url}: {error}; fix MLFLOW_S3_ENDPOINT_URL or AWS_ENDPOINT_URL") from None

    def _key(self, key: str) -> str:
        return f"{self.root}/{key}" if self.root else key

    def put_new(self, key: str, body: str) -> bool:
        """One conditional put."""
        try:
            self.api.put_object(Bucket=self.bucket, Key=self._key(key), Body=body.encode(), IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] in _LOST:
                return False
            raise
        return True

    def entries(self, name: str) -> dict[str, Entry]:
        """Objects below the prefix of that name; ages by the server's clock."""
        prefix = self._key(f"{name}/")
        listed = self.api.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter="/")  # what lies deeper is none
        entries = {}
        for item in listed.get("Contents", []):
            if not item["Key"].removeprefix(prefix).isdecimal():
                continue
            try:
                got = self.api.get_object(Bucket=self.bucket, Key=item["Key"])
            except ClientError as error:
                if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:  # released meanwhile
                    continue
                raise
            age = _date(got["ResponseMetadata"]["HTTPHeaders"]["date"]) - got["LastModified"].timestamp()
            key = item["Key"][len(self.root) + 1 if self.root else 0 :]
            entries[key] = Entry(got["Body"].read().decode(errors="replace"), age)
        return entries

    def delete(self, key: str) -> None:
        """Delete the object."""
        self.api.delete_object(Bucket=self.bucket, Key=self._key(key))


def _date(header: str) -> float:
    return parsedate_to_datetime(header).timestamp()
