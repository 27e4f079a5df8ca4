"""Where the search log lies: a folder or an S3 prefix. Files appear whole and are never written again."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from steps.core.errors import TransientError, UserError, line
from steps.core.files import staged_file

_REFUSED = {
    "AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "NoSuchBucket", "SignatureDoesNotMatch",
}  # fmt: skip


class LogStore(Protocol):
    """Files by their path below the log's root."""

    def write(self, name: str, text: str) -> None:
        """Write a file whole; UserError or TransientError where that fails."""

    def read(self, name: str) -> str | None:
        """A file's text; None where there is none."""

    def names(self) -> Iterator[str]:
        """All files."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


class FolderLogStore:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        """Write by rename."""
        try:
            with staged_file(self.root / name) as staging:
                staging.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TransientError(f"search log: {error}; free space, or name another folder") from None

    def read(self, name: str) -> str | None:
        """A file's text; None where there is none."""
        path = self.root / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def names(self) -> Iterator[str]:
        """All files."""
        return (path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())

    def delete(self, name: str) -> None:
        """Delete a file, and its day's folder once that is empty."""
        path = self.root / name
        path.unlink(missing_ok=True)
        if path.parent != self.root and not any(path.parent.iterdir()):
            path.parent.rmdir()


class S3LogStore:
    """A prefix of a bucket; endpoint and credentials come from the AWS_* variables."""

    def __init__(self, url: str, client: Any = None) -> None:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not bucket:
            raise UserError(f"search log: {url!r} names no bucket; write s3://bucket/prefix")
        self.bucket, self.prefix, self._client = bucket, prefix.rstrip("/") + "/" if prefix else "", client

    @property
    def client(self) -> Any:
        """Made on first use: importing boto3 takes a while."""
        if self._client is None:
            import boto3
            from botocore.config import Config

            self._client = boto3.Session().client("s3", config=Config(connect_timeout=10))  # seconds
        return self._client

    def write(self, name: str, text: str) -> None:
        """Put an object: whole, or not at all."""
        with _explained(self.bucket):
            self.client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=text.encode("utf-8"))

    def read(self, name: str) -> str | None:
        """An object's text; None where there is none."""
        from botocore.exceptions import ClientError

        with _explained(self.bucket):
            try:
                body = self.client.get_object(Bucket=self.bucket, Key=self.prefix + name)["Body"]
            except ClientError as error:
                if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:
                    return None
                raise
            return str(body.read().decode("utf-8"))

    def names(self) -> Iterator[str]:
        """All objects."""
        with _explained(self.bucket):
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix):
                for item in page.get("Contents", []):
                    yield item["Key"].removeprefix(self.prefix)

    def delete(self, name: str) -> None:
        """Delete an object."""
        with _explained(self.bucket):
            self.client.delete_object(Bucket=self.bucket, Key=self.prefix + name)


def log_store(location: str) -> LogStore:
    """The store that a location names; UserError for any other scheme than s3, and without s3's client."""
    if location.startswith("s3://"):
        if not find_spec("boto3"):
            raise UserError(f"search log: {location} needs boto3; `pip install 'slimtower[registry]'`")
        return S3LogStore(location)
    if "://" in location:
        raise UserError(f"search log: {location!r} is neither a folder nor on s3://; write s3://bucket/prefix")
    return FolderLogStore(Path(location))


@contextmanager
def _explained(bucket: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error, ValueError) as error:
        kind = UserError if _refused(error) else TransientError
        raise kind(f"search log: s3://{bucket}: {line(error)[:200]}; check AWS_* and the bucket") from None


def _refused(error: Exception) -> bool:
    """Whether trying again helps nothing: login or endpoint are missing, malformed or unknown, or the bucket is."""
    from botocore.exceptions import ClientError, CredentialRetrievalError, NoCredentialsError, PartialCredentialsError

    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (401, 403) or error.response.get("Error", {}).get("Code") in _REFUSED
    no_login = NoCredentialsError | PartialCredentialsError | CredentialRetrievalError
    return isinstance(error, ValueError | no_login) or "Invalid header" in str(error)
