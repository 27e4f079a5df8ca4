"""What a tracking server that is away could not be told: calls in files, which wait until they can be made.

<folder>/<time>-<random>/opening.json     what the calls belong to
                         calls.jsonl      a call a line, in order; its process holds a lock on it
                         sent             how many of them were made
                         files/<n>/<name> copies of the files and folders that calls name
"""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slimtower.common.files import folder_bytes, read_json, staged_file, write_json

LARGEST = 2**28  # bytes of a file or folder of which a copy is kept
_SHARE = 10  # of what is free on the disk a copy takes at most one part in so many
_IDLE_S = 86400
_REMOVED = ".gone."  # begins the names of spools of which nothing is wanted any more


class Spool:
    """The calls of one run, held by one process at a time."""

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
        """Write what the calls belong to."""
        write_json(self.folder / "opening.json", opening)

    def add(self, call: str, arguments: Mapping[str, Any]) -> Path | None:
        """Keep a call, with copies of the files that it names by a Path; returns one that is too large, if any."""
        files = {name: value for name, value in arguments.items() if isinstance(value, Path)}
        limit = min(LARGEST, shutil.disk_usage(self.folder).free // _SHARE) if files else 0
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
        for number, line in enumerate(lines[sent:], start=sent + 1):
            with contextlib.suppress(ValueError):
                record = json.loads(line)
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
