"""Where releases come from: a folder, or a registry (registry.py). A source is asked again and again."""

import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Protocol

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import read_json
from slimtower.service.systems import Origin, Served, stamp
from slimtower.serving.choice import run_command
from slimtower.serving.release import load_release

THREADS = 1  # of one encoding and of one search: requests run side by side


class Source(Protocol):
    """What should be served, and how to get it."""

    def poll(self) -> Mapping[str, Hashable]:
        """Name -> a key that changes with the release. UserError if that cannot be told now."""

    def load(self, name: str, key: Hashable) -> Served:
        """Load and verify the release of that name and key. UserError when it does not open or is another by now."""

    def default(self, names: list[str]) -> str:
        """Which of the names answers where a request gives none; empty if nothing says it."""


class FolderSource:
    """A release's folder, or a folder of releases; read again when a manifest changes."""

    def __init__(self, folder: Path, system: str) -> None:
        self.folder, self.system = folder.absolute(), system  # `.` has no name; a link may be pointed elsewhere later

    def poll(self) -> dict[str, Hashable]:
        """By the name of their folder."""
        keys = {path.name: key for path in self._folders() if (key := _key(path)) is not None}
        if not keys:
            command = run_command(project_of(self.folder) or Path())
            raise UserError(f"{self.folder}: no release here; run {command}, or name a release with RELEASE=")
        return keys

    def load(self, name: str, key: Hashable) -> Served:
        """Load the release; TransientError when it was replaced meanwhile, so that its parts may be of two."""
        folder = next(path for path in self._folders() if path.name == name)
        try:
            release = load_release(folder, THREADS)
        finally:  # what does not open then is no fault of either release
            if _key(folder) != key:
                raise TransientError(f"{folder}: was replaced while it was loaded")
        created = stamp((folder / "manifest.json").stat().st_mtime)
        return Served(name, release, Origin(source=folder.name, created=created), stamp(time.time()))

    def default(self, names: list[str]) -> str:
        """The named system, else the evaluation's choice, if there is one; UserError for a name that is not there."""
        if self.system and self.system not in names:
            raise UserError(f"system {self.system!r} is not among the releases; choose one of {', '.join(names)}")
        return self.system or self._chosen(names)

    def _folders(self) -> list[Path]:
        if (self.folder / "manifest.json").is_file() or not self.folder.is_dir():
            return [self.folder]
        return sorted(path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))

    def _chosen(self, names: list[str]) -> str:
        root = project_of(self.folder)
        metrics = root / "reports/metrics.json" if root else None
        if metrics is None or not metrics.is_file():
            return ""
        evaluated = read_json(metrics)
        chosen = evaluated.get("choice", {}).get("student")
        # releases that were not evaluated may be of earlier params
        current = [name for name in names if name in evaluated.get("releases", {})]
        return chosen if chosen in names else next(iter(current), "")


def project_of(folder: Path) -> Path | None:
    """The project that a folder of releases, or one of them, belongs to: corpus, teacher and evaluation lie there."""
    path = folder.resolve()
    for releases in (path, path.parent):
        if releases.name == "release" and releases.parent.name == "models":
            return releases.parent.parent
    return None


def _key(folder: Path) -> Hashable | None:
    """What tells one manifest file from another; None if there is none."""
    try:
        here, manifest = folder.stat(), (folder / "manifest.json").stat()
    except OSError:
        return None
    return here.st_ino, manifest.st_ino, manifest.st_mtime_ns, manifest.st_size
