"""One mover of aliases at a time, over all machines, and no lock that outlives its holder for long.

A lock is an object `<name>/<generation>`. Whoever finds no live one puts the next generation, conditionally, so that
one writer wins; it then looks again and yields to any other live one, because a generation can be free once more after
a release. A stale object is thus never overwritten, only overtaken. Before every write the holder asks `guard`, which
refuses once half of the lock's life is over, by the clock of the place where locks lie. A holder that stands still for
the other half between a guard and its write is the one case left: MLflow has no conditional write.
"""

import contextlib
import json
import os
import random
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from slimtower.common.errors import TransientError, UserError
from slimtower.common.s3 import unless_absent
from slimtower.registry.client import tracking_uri
from steps.promote.registry import Registry

_LOST = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


@dataclass(frozen=True)
class Entry:
    """What an object says, and its age in seconds by the clock of the place it lies in."""

    body: str
    age_s: float


class FolderLockStore:
    """Objects by key in a folder that all who take the lock can write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put_new(self, key: str, body: str) -> bool:
        """Write an object unless the key is taken; tells whether it was written. Atomic among all writers.

        A hard link is made whole or not at all. On a file system without links a kill may leave a cut file.
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
        """Objects whose keys are `<name>/<digits>`, aged by the clock of the file system, maybe another machine's."""
        entries = {}
        paths = sorted(path for path in (self.folder / name).glob("*") if path.name.isdecimal())
        if paths:
            with tempfile.NamedTemporaryFile(prefix=".now.", dir=self.folder) as probe:
                moment = Path(probe.name).stat().st_mtime
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # released meanwhile
                body = path.read_text(encoding="utf-8", errors="replace")
                entries[path.relative_to(self.folder).as_posix()] = Entry(body, moment - path.stat().st_mtime)
        return entries

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        (self.folder / key).unlink(missing_ok=True)


def _write_new(path: Path, body: str) -> None:
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
        try:
            self.api.put_object(Bucket=self.bucket, Key=self._key(key), Body=body.encode(), IfNoneMatch="*")
        except ClientError as error:
            if error.response["Error"]["Code"] in _LOST:
                return False
            raise
        return True

    def entries(self, name: str) -> dict[str, Entry]:
        """As FolderLockStore's; ages by the server's clock."""
        prefix = self._key(f"{name}/")
        listed = self.api.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter="/")  # what lies deeper is none
        entries = {}
        for item in listed.get("Contents", []):
            if not item["Key"].removeprefix(prefix).isdecimal():
                continue
            got = unless_absent(partial(self.api.get_object, Bucket=self.bucket, Key=item["Key"]))
            if got is None:  # released meanwhile
                continue
            served_at = parsedate_to_datetime(got["ResponseMetadata"]["HTTPHeaders"]["date"])
            age = (served_at - got["LastModified"]).total_seconds()
            key = item["Key"][len(self.root) + 1 if self.root else 0 :]
            entries[key] = Entry(got["Body"].read().decode(errors="replace"), age)
        return entries

    def delete(self, key: str) -> None:
        self.api.delete_object(Bucket=self.bucket, Key=self._key(key))


LockStore = FolderLockStore | S3LockStore
Guard = Callable[[], None]


class Lock:
    """A lock by name. `wait_s`: how long to try; `expires_s`: the age at which it counts as left behind."""

    def __init__(self, store: LockStore, name: str, wait_s: float, expires_s: float) -> None:
        self.store, self.name, self.wait_s, self.expires_s = store, name, wait_s, expires_s

    @contextmanager
    def hold(self) -> Iterator[Guard]:
        """Hold the lock; yields the guard. TransientError when others hold it all the time or it was lost."""
        body = json.dumps(
            {"id": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(), "in": _process_space()}
        )
        key = self._acquire(body)

        def guard() -> None:
            present = self.store.entries(self.name).get(key)
            if present is None or present.body != body or present.age_s > self.expires_s / 2:
                raise TransientError(f"promotion lock of {self.name}: held too long and given up; run it again")

        try:
            yield guard
        finally:
            with contextlib.suppress(Exception):  # it expires by itself; the caller's own error matters more
                self.store.delete(key)

    def _acquire(self, body: str) -> str:
        deadline = time.monotonic() + self.wait_s
        while True:
            attempt = self._try(body)
            if isinstance(attempt, str):
                return attempt
            if time.monotonic() > deadline:
                holder = _holder(attempt) if attempt else {}
                who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
                age = max(0, round(attempt.age_s)) if attempt else 0
                raise TransientError(
                    f"promotion lock of {self.name}: held by {who} for {age} s; try again (it expires after"
                    f" {self.expires_s:.0f} s)"
                )
            time.sleep(random.uniform(0.05, 0.5))

    def _try(self, body: str) -> str | Entry | None:
        """The key that we hold now; else who holds it, or None after a lost race."""
        seen = self.store.entries(self.name)
        live = {key: entry for key, entry in seen.items() if not self._stale(entry)}
        if live:
            return next(iter(live.values()))
        last = max((int(key.rpartition("/")[2]) for key in seen), default=0)
        key = f"{self.name}/{last + 1:08d}"
        try:
            return key if self._won(key, body, seen) else None
        except BaseException:
            with contextlib.suppress(Exception):
                if self.store.entries(self.name)[key].body == body:
                    self.store.delete(key)
            raise

    def _won(self, key: str, body: str, seen: dict[str, Entry]) -> bool:
        """Put the object, unless others were first or come between; `seen` are stale ones, then removed."""
        if not self.store.put_new(key, body):
            present = self.store.entries(self.name).get(key)
            if present is None or present.body != body:  # else it was written, and the answer got lost
                return False
        if self.store.put_new(key, body):
            raise UserError(
                f"promotion lock of {self.name}: the store ignores If-None-Match and cannot hold a lock; let"
                " SLIMTOWER_LOCK name a bucket of one that does, or a shared folder"
            )
        rivals = self.store.entries(self.name)
        if any(
            rival != key and (rival not in seen or seen[rival].body != entry.body) for rival, entry in rivals.items()
        ):
            self.store.delete(key)
            return False
        for old in seen:
            self.store.delete(old)
        return True

    def _stale(self, entry: Entry) -> bool:
        """Too old, or of a process of this very system that is gone."""
        holder = _holder(entry)
        here, pid = holder.get("in") == _process_space(), holder.get("pid")
        return entry.age_s > self.expires_s or (here and isinstance(pid, int) and not _alive(pid))


def lock_store(registry: Registry) -> LockStore:
    """Where this server's locks lie: SLIMTOWER_LOCK, else what the model's tag says, else beside the artefacts.

    For a sqlite file that is a folder beside it. UserError if SLIMTOWER_LOCK is another place than the tag says, or as
    `lock_place` raises it.
    """
    uri = tracking_uri()
    chosen, agreed = os.environ.get("SLIMTOWER_LOCK"), registry.model_tags().get("lock")
    if chosen and agreed and chosen.rstrip("/") != agreed.rstrip("/"):
        raise UserError(
            f"SLIMTOWER_LOCK is {chosen!r}, but {registry.name} is locked at {agreed!r}; unset it (to move the lock,"
            " change the registered model's tag slimtower.lock while nobody promotes)"
        )
    if not chosen and not agreed and uri.startswith("sqlite:///"):
        return FolderLockStore(Path(f"{uri.removeprefix('sqlite:///')}.locks"))
    location = lock_place(registry, agreed)
    return (
        S3LockStore(location)
        if location.startswith("s3://")
        else FolderLockStore(Path(location.removeprefix("file://")))
    )


def lock_place(registry: Registry, agreed: str | None = None) -> str:
    """SLIMTOWER_LOCK, or where the model's tag says; else `locks` beside the artefacts of the project's experiment.

    UserError if those are in no S3 bucket, or if the place is not the same for everyone who promotes.
    """
    if setting := os.environ.get("SLIMTOWER_LOCK") or agreed:
        if setting.startswith("s3://") or Path(setting.removeprefix("file://")).is_absolute():
            return setting
        raise UserError(
            f"SLIMTOWER_LOCK is {setting!r}; give s3://bucket/prefix or the absolute path of a shared folder"
        )
    location = str(registry.api.get_experiment(registry.experiment()).artifact_location)
    if not location.startswith("s3://"):
        raise UserError(
            f"{tracking_uri()}: its artefacts are at {location!r}, where no lock can be held; set SLIMTOWER_LOCK to"
            " s3://bucket/prefix (or a folder that everyone who promotes shares)"
        )
    return f"{location.rstrip('/').rpartition('/')[0]}/locks"


def _process_space() -> str:
    """This boot of this machine and its namespace of process ids, in which a pid names one process."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not boot.is_file():
        return f"{socket.gethostname()}/{uuid.getnode()}"
    return f"{boot.read_text().strip()}/{space.readlink()}"


def _holder(entry: Entry) -> dict[str, Any]:
    """What an object says of its holder; nothing where it is damaged, as a crash of its machine may leave it."""
    try:
        holder = json.loads(entry.body)
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError) as error:
        return isinstance(error, PermissionError)
    return True
