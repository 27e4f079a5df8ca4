"""Where the tasks of one run meet: small files by key, in a folder or below an S3 prefix.

runs/<run>/begin.json, params.yaml, sources.json, dvc.lock    what the run is fixed to
runs/<run>/locks/<stage>.yaml                                 what a stage added to dvc.lock
locks/<run>/dvc.lock, params.yaml, sources.json, begin.json   a finished run; locks/latest/ is the newest
dvc/                                                          DVC's remote
"""

from pathlib import Path
from typing import Any, Protocol

from slimtower.common.errors import UserError
from slimtower.common.files import staged_file
from slimtower.common.s3 import explained, read_whole, s3_client, unless_absent


class RunStore(Protocol):
    """Files by key. TransientError when the place cannot be reached, UserError when it refuses."""

    url: str

    def read(self, key: str) -> bytes | None:
        """Content of a file, None if there is none."""

    def write(self, key: str, content: bytes) -> None:
        """Write a file, whole or not at all."""

    def names(self, folder: str) -> list[str]:
        """Names of the files directly below a folder, sorted."""

    def holds(self, key: str) -> bool:
        """Tell whether there is such a file."""


class FolderStore:
    """A folder that all tasks reach under the same absolute path."""

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root)

    def read(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def write(self, key: str, content: bytes) -> None:
        """Write beside the file, then rename."""
        with staged_file(self.root / key) as staging:
            staging.write_bytes(content)

    def names(self, folder: str) -> list[str]:
        paths = (self.root / folder).glob("[!.]*")  # hidden ones are being written
        return sorted(path.name for path in paths if path.is_file())

    def holds(self, key: str) -> bool:
        return (self.root / key).is_file()


class S3Store:
    """A prefix of an S3 bucket."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.bucket, _, self.root = self.url.removeprefix("s3://").partition("/")
        self.where = f"SLIMTOWER_REMOTE: {self.url}"
        self.api: Any = s3_client(self.where)

    def _key(self, key: str) -> str:
        return f"{self.root}/{key}" if self.root else key

    def read(self, key: str) -> bytes | None:
        where = {"Bucket": self.bucket, "Key": self._key(key)}
        with explained(self.where):
            return unless_absent(lambda: read_whole(lambda: bytes(self.api.get_object(**where)["Body"].read())))

    def write(self, key: str, content: bytes) -> None:
        with explained(self.where):
            self.api.put_object(Bucket=self.bucket, Key=self._key(key), Body=content)

    def names(self, folder: str) -> list[str]:
        prefix = f"{self._key(folder)}/"
        pages = self.api.get_paginator("list_objects_v2")
        with explained(self.where):
            keys = [
                item["Key"].removeprefix(prefix)
                for page in pages.paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
                for item in page.get("Contents", [])
            ]
        return sorted(name for name in keys if name)

    def holds(self, key: str) -> bool:
        where = {"Bucket": self.bucket, "Key": self._key(key)}
        with explained(self.where):
            return unless_absent(lambda: self.api.head_object(**where)) is not None


def open_store(remote: str) -> RunStore:
    """The store at SLIMTOWER_REMOTE; UserError unless it is s3://bucket/prefix or an absolute folder."""
    if remote.startswith("s3://") and remote.removeprefix("s3://").strip("/"):
        return S3Store(remote)
    if not Path(remote).is_absolute():
        raise UserError(f"SLIMTOWER_REMOTE is {remote!r}; give s3://bucket/prefix or the absolute path of a folder")
    return FolderStore(Path(remote))
