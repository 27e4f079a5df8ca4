"""Where the search log lies: a folder or an S3 prefix. Files appear whole and are never written again."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import cache_root, file_lock, last_used, sha256_file, staged_file
from slimtower.common.s3 import explained, s3_client, unless_absent

_DIGEST = "sha256"  # an object's metadata
Lines = Callable[[], Iterable[str]]  # asked for twice where a file is compared, then written


class FolderLogStore:
    """Files by their path below a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        """Write a file whole; UserError or TransientError if that fails."""
        self._write(name, [text])

    def keep(self, name: str, lines: Lines) -> None:
        """Write a file whole, line by line, unless it holds these lines already; errors are those of `write`."""
        path = self.root / name
        if not path.is_file() or sha256_file(path) != _digest(lines()):
            self._write(name, lines())

    def _write(self, name: str, lines: Iterable[str]) -> None:
        try:
            with staged_file(self.root / name) as staging, staging.open("w", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            raise TransientError(f"search log: {error}; free space, or name another folder") from None

    def names(self) -> Iterator[str]:
        return (path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())

    def delete(self, name: str) -> None:
        """Delete a file, and its day's folder once that is empty."""
        path = self.root / name
        path.unlink(missing_ok=True)
        if path.parent != self.root and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def fetch(self, name: str, into: Path) -> Path:
        """A file's path on this machine; of a store elsewhere it lies below `into`."""
        return self.root / name


class S3LogStore:
    """A prefix of a bucket; endpoint and credentials come from the AWS_* variables."""

    def __init__(self, url: str, client: Any = None, purpose: str = "search log") -> None:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise UserError(f"{purpose}: {url!r} names no bucket; write s3://bucket/prefix")
        self.bucket, self.prefix, self._client = bucket, prefix.rstrip("/") + "/" if prefix else "", client
        self._bucket_name = f"{purpose}: s3://{bucket}"

    @property
    def client(self) -> Any:
        """Made on first use: importing boto3 takes a while."""
        if self._client is None:
            self._client = s3_client(self._bucket_name)
        return self._client

    def write(self, name: str, text: str) -> None:
        with explained(self._bucket_name):
            self.client.put_object(**self._where(name), Body=text.encode("utf-8"))

    def keep(self, name: str, lines: Lines) -> None:
        """Put an object by way of a file in the cache, its digest as metadata, unless that is there."""
        where, folder = self._where(name), cache_root() / "serve"
        with explained(self._bucket_name):
            head = unless_absent(lambda: self.client.head_object(**where))
            if head and head.get("Metadata", {}).get(_DIGEST) == _digest(lines()):
                return
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                metadata = {_DIGEST: _digest(lines(), file)}
                file.seek(0)
                self.client.put_object(**where, Body=file, Metadata=metadata)

    def _where(self, name: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.prefix + name}

    def names(self) -> Iterator[str]:
        with explained(self._bucket_name):
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix):
                for item in page.get("Contents", []):
                    yield item["Key"].removeprefix(self.prefix)

    def delete(self, name: str) -> None:
        with explained(self._bucket_name):
            self.client.delete_object(**self._where(name))

    def fetch(self, name: str, into: Path) -> Path:
        """Download an object unless this version of it lies below `into`; of earlier versions the last one stays."""
        where = self._where(name)
        with explained(self._bucket_name), file_lock(into / ".lock"):
            head = unless_absent(lambda: self.client.head_object(**where))
            if head is None:
                raise UserError(f"{self._bucket_name}: no object {where['Key']}; copy it there")
            version = head["ETag"].strip('"')
            target = into / version / name
            if not target.is_file():
                with staged_file(target) as staging, staging.open("wb") as file:
                    shutil.copyfileobj(self.client.get_object(**where)["Body"], file)
            versions = [path for path in into.iterdir() if path.is_dir() and path.name != version]
            for old in sorted(versions, key=last_used)[:-1]:  # another process may still read the last one
                shutil.rmtree(old, ignore_errors=True)
        return target


LogStore = FolderLogStore | S3LogStore


def log_store(location: str, purpose: str = "search log") -> LogStore:
    """The store that a location names; UserError for any other scheme than s3, and without s3's client."""
    if location.startswith("s3://"):
        if not find_spec("boto3"):
            raise UserError(f"{purpose}: {location} needs boto3; `pip install 'slimtower[registry]'`")
        return S3LogStore(location, purpose=purpose)
    if "://" in location:
        raise UserError(f"{purpose}: {location!r} is neither a folder nor on s3://; write s3://bucket/prefix")
    return FolderLogStore(Path(location))


def _digest(lines: Iterable[str], file: IO[bytes] | None = None) -> str:
    """Hex sha256 of the lines, which are written into the file."""
    total = hashlib.sha256()
    for text in lines:
        content = text.encode("utf-8")
        total.update(content)
        if file is not None:
            file.write(content)
    return total.hexdigest()
