"""The run of a stage in MLflow, which goes on while the tracking server is away: what it says waits in a spool.

The spool is sent as soon as the server is back: by the stage itself, at the latest by the next run on the same cache.
"""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from slimtower.common.errors import TransientError, UserError, line
from slimtower.common.files import cache_root, folder_bytes, read_json, sha256_text, staged_file, write_json
from slimtower.common.masking import redacted
from slimtower.registry.client import Unwanted, check_answering, client, sending, sqlite_file, tracking_uri
from steps.tracking.run_ids import git_commit, pipeline_folder, pipeline_key, pipeline_run, run_name, scheduler_tags
from steps.tracking.runs import Build, MlflowRun, Run, experiment_id, experiment_name, flatten, now_ms

LARGEST = 2**28  # bytes of a file or folder of which a copy is kept
_DISK_SHARE = 10  # of what is free on the disk a copy takes at most one part in so many
_IDLE_S = 86400
_REMOVED = ".gone."  # begins the names of spools of which nothing is wanted any more
_WAIT = 30.0  # seconds before the server is tried again, at least
_TIME_SHARE = 10  # and this many times what the last try took: at most a tenth of a stage's time


@contextmanager
def stage_run(stage: str, params: Mapping[str, Any]) -> Iterator["StageRun"]:
    """Open the child run of a stage (`distill@2l` for a cell), log its params, close it FINISHED or FAILED.

    UserError if the server refuses, or a local store cannot be opened, before anything is done.
    """
    run = StageRun(stage)
    try:
        for name, value in flatten(params).items():
            run.param(name, value)
        yield run
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what is told
            run.end("FAILED")
        raise
    run.end("FINISHED")


class StageRun(Run):
    """The Run of a stage. No call fails because the server is away, or a proxy answers for it, or it refuses."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._run: MlflowRun | None = None
        self._spool: Spool | None = None
        self._next = 0.0  # time.monotonic() from which the server is tried again
        tags = {"slimtower.stage": stage, "slimtower.git_commit": git_commit(), **scheduler_tags()}
        self._opening = {
            "stage": stage,
            "parent": os.environ.get("SLIMTOWER_PARENT_RUN", ""),
            "pipeline": pipeline_key(),
            "named": run_name(tags["slimtower.git_commit"]),
            "folder": pipeline_folder(),
            "tags": tags,
            "began": now_ms(),
        }
        started = time.monotonic()
        try:
            with sending():
                self._run = _open_run(client(), self._opening)
            send_waiting()
        except TransientError as error:
            if tracking_uri().startswith("sqlite:"):  # a file is not away
                raise
            self._keep(error, started)

    @property
    def run_id(self) -> str:
        """Its id in MLflow; TransientError while the server does not know it."""
        if self._run is None:
            raise TransientError(f"{tracking_uri()}: has not heard of {self.stage} yet; is the server up?")
        return self._run.run_id

    def built_model(self, name: str, content: str, build: Build, *, once: bool = False) -> None:
        if self._try("built_model", name=name, content=content, build=build, once=once):
            return
        with tempfile.TemporaryDirectory() as scratch:
            build(Path(scratch) / "model")
            self.record("model", folder=Path(scratch) / "model", name=name, tags={"slimtower.content": content})

    def end(self, status: str) -> None:
        """Close it; what waits then is left to the next run."""
        self._next = 0.0
        self.record("end", status=status, at=now_ms())
        if self._spool is not None:
            self._spool.close()

    def record(self, call: str, **arguments: Any) -> None:
        """Make a call of MlflowRun now, or keep it behind those that wait."""
        if self._try(call, **arguments):
            return
        assert self._spool is not None
        if (large := self._spool.add(call, arguments)) is not None:
            _say(f"{self.stage}: {large.name} is too large to wait for the server; it is not attached")
        if time.monotonic() >= self._next:
            self._catch_up()

    def _try(self, call: str, **arguments: Any) -> bool:
        """Make a call unless others wait; tells whether the server took it."""
        if self._spool is not None:
            return False
        assert self._run is not None
        started = time.monotonic()
        try:
            with sending():
                getattr(self._run, call)(**arguments)
        except UserError as error:
            self._keep(error, started)
            return False
        return True

    def _keep(self, error: UserError, started: float) -> None:
        identity = {"run": self._run.run_id} if self._run else {}
        self._spool = Spool.make(spools(), self._opening | identity)
        self._wait(started)
        _say(
            f"{line(error)}; {self.stage} goes on, and what it tracks is sent later, at the latest by the next run"
            f" ({self._spool.folder})"
        )

    def _catch_up(self) -> None:
        assert self._spool is not None
        started = time.monotonic()
        try:
            self._run = _send(self._spool)
        except UserError:
            self._wait(started)
            return
        self._spool.remove()
        self._spool = None
        _say(f"{self.stage}: the server is there again, and has what waited")

    def _wait(self, started: float) -> None:
        moment = time.monotonic()
        self._next = moment + max(_WAIT, _TIME_SHARE * (moment - started))


class Spool:
    """What a tracking server that is away could not be told: the calls of one run, held by one process at a time.

    <folder>/<time>-<random>/opening.json     what the calls belong to
                             calls.jsonl      a call a line, in order; its process holds a lock on it
                             sent             how many of them were made
                             files/<n>/<name> copies of the files and folders that calls name
    """

    def __init__(self, folder: Path, *, new: bool = False) -> None:
        """Hold a spool that is there; OSError if another process holds it, or it is gone.

        On a file system without locks one that is not `new` counts as held until nothing was added for a day.
        """
        self.folder = folder
        self._calls = (folder / "calls.jsonl").open("r+b")
        try:
            try:
                fcntl.flock(self._calls, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError as error:
                if not new and time.time() - os.fstat(self._calls.fileno()).st_mtime < _IDLE_S:
                    raise BlockingIOError("another process may hold it") from error
            (folder / "calls.jsonl").stat()  # another process may have sent and removed it just before
            self._calls.seek(0, os.SEEK_END)
        except OSError:
            self._calls.close()
            raise

    @classmethod
    def make(cls, root: Path, opening: Mapping[str, Any]) -> "Spool":
        """A new spool below `root`; no other process sees it before it is held and whole."""
        name = f"{time.time_ns()}-{uuid.uuid4().hex[:8]}"
        staging = root / f".staging.{name}"
        staging.mkdir(parents=True)
        (staging / "calls.jsonl").touch()
        spool = cls(staging, new=True)
        spool.open_with(opening)
        spool.folder = staging.rename(root / name)
        return spool

    @property
    def opening(self) -> dict[str, Any]:
        """What the calls belong to."""
        return dict(read_json(self.folder / "opening.json"))

    def open_with(self, opening: Mapping[str, Any]) -> None:
        write_json(self.folder / "opening.json", opening)

    def add(self, call: str, arguments: Mapping[str, Any]) -> Path | None:
        """Keep a call, with copies of the files that it names by a Path; returns one that is too large, if any."""
        files = {name: value for name, value in arguments.items() if isinstance(value, Path)}
        limit = min(LARGEST, shutil.disk_usage(self.folder).free // _DISK_SHARE) if files else 0
        for path in files.values():
            if (folder_bytes(path) if path.is_dir() else path.stat().st_size) > limit:
                return path
        copies = {name: self._copy(path) for name, path in files.items()}
        plain = {name: value for name, value in arguments.items() if name not in files}
        self._calls.write(json.dumps({"call": call, "given": plain, "files": copies}).encode() + b"\n")
        self._calls.flush()
        return None

    def _copy(self, path: Path) -> str:
        folder = next(
            candidate for n in itertools.count() if not (candidate := self.folder / "files" / str(n)).exists()
        )
        folder.mkdir(parents=True)
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name)
        return str((folder / path.name).relative_to(self.folder))

    def unsent(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Calls that were not made yet, each taken for made when the next is asked for; a line cut short is none."""
        mark = self.folder / "sent"
        sent = int(mark.read_text() or 0) if mark.is_file() else 0
        lines = (self.folder / "calls.jsonl").read_bytes().split(b"\n")[:-1]
        for number, row in enumerate(lines[sent:], start=sent + 1):
            with contextlib.suppress(ValueError):
                record = json.loads(row)
                files = {name: self.folder / path for name, path in record["files"].items()}
                yield record["call"], record["given"] | files
            with staged_file(mark) as staging:
                staging.write_text(str(number))

    def close(self) -> None:
        """Let other processes have it."""
        with contextlib.suppress(OSError):  # what a full disk did not take has been told of
            self._calls.close()

    def remove(self) -> None:
        """Delete it; it disappears at once, so that a kill leaves no part of it to be sent."""
        with contextlib.suppress(FileNotFoundError):  # somebody was faster
            removed = self.folder.rename(self.folder.with_name(f"{_REMOVED}{self.folder.name}"))
            shutil.rmtree(removed, ignore_errors=True)
        self.close()


def waiting_spools(root: Path) -> Iterator[Spool]:
    """The spools below `root` that no process holds, oldest first, each held until the next is asked for.

    What killed processes left of spools that were sent is deleted.
    """
    for folder in root.glob(f"{_REMOVED}*"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in sorted(root.glob("[!.]*")):
        try:
            spool = Spool(folder)
        except OSError:
            continue
        try:
            yield spool
        finally:
            spool.close()


def spools() -> Path:
    """Where the spools for the present server and experiment lie, with whichever login it is reached.

    A database of SQLite is known by its place beside the cache, so that both may move together.
    """
    if database := sqlite_file():
        server = f"sqlite {os.path.relpath(database.resolve(), cache_root().resolve())}"
    else:
        parts = urlsplit(tracking_uri().rstrip("/"))
        server = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2].lower()))
    return cache_root() / "tracking" / sha256_text(f"{server}\n{experiment_name()}")[:16]


def send_waiting() -> None:
    """Send what stages on this cache could not, and delete it; TransientError if the server is away."""
    send_each("stage", _send_ended)


def send_each(kind: str, send: Callable[[Spool], None]) -> None:
    """Send the spools on this cache whose opening has the key `kind`, and delete them.

    TransientError if the server is away; any other fault of one is told, and must not stop what comes after it.
    """
    for spool in waiting_spools(spools()):
        try:
            if kind not in spool.opening:
                continue
            with sending():
                send(spool)
            spool.remove()
        except TransientError as error:
            raise TransientError(f"{line(error)}; what waits lies in {spool.folder}") from error
        except Exception as error:  # of a spool that other code wrote even a bug's
            _say(f"{line(error)[:300]}; to forget what this is about, delete {spool.folder}")


def _send_ended(spool: Spool) -> None:
    run = _send(spool)
    if run.api.get_run(run.run_id).info.status == "RUNNING":  # it was killed
        run.end("KILLED")


def _send(spool: Spool) -> MlflowRun:
    """Make the calls that wait, on a run that is opened if need be; returns the run. Refused calls are printed."""
    with sending():
        run, refused = _open_run(client(), opening := spool.opening), []
    spool.open_with(opening | {"run": run.run_id})
    for call, arguments in spool.unsent():
        try:
            with sending():
                getattr(run, call)(**arguments)
        except Unwanted as error:
            refused.append(line(error))
    if refused:
        _say(f"{opening['stage']}: {tracking_uri()} would not have {len(refused)} of its calls: {refused[0][:300]}")
    return run


def _open_run(api: Any, opening: Mapping[str, Any]) -> MlflowRun:
    """The run of a stage: the one that is known by now, or a new one below its pipeline's."""
    check_answering()
    experiment = experiment_id(api)
    if "run" in opening:
        return MlflowRun(api, opening["run"], experiment)
    commit = opening["tags"]["slimtower.git_commit"]
    parent = opening["parent"] or pipeline_run(
        api, experiment, opening["pipeline"], commit, opening["named"], opening.get("folder", "")
    )
    tags = {"mlflow.parentRunId": parent, **opening["tags"]}
    created = api.create_run(experiment, start_time=opening["began"], run_name=opening["stage"], tags=tags)
    return MlflowRun(api, str(created.info.run_id), experiment)


def _say(text: str) -> None:
    print(f"tracking: {redacted(text)}", file=sys.stderr, flush=True)
