"""Where releases come from: a folder, or the champion of a registered model. A source is asked again and again."""

import hashlib
import json
import shutil
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import cache_root, file_lock, last_used, read_json, staged_folder
from slimtower.registry.client import client, reaching, sqlite_file, tracking_uri
from slimtower.service.systems import Origin, Served, stamp
from slimtower.serving.choice import run_command
from slimtower.serving.release import Release, load_release

THREADS = 1  # of one encoding and of one search: requests run side by side
_PREFIX = "slimtower."  # of the tags that `make promote` sets
_EVENT = f"{_PREFIX}event."  # of a registered model's audit trail
_CACHED_VERSIONS = 3  # versions in the cache


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


class RegistrySource:
    """`NAME@alias` of MLflow's registry. One system answers, under the alias' name."""

    def __init__(self, reference: str) -> None:
        name, at, alias = reference.removeprefix("models:/").partition("@")
        if not (name and at and alias):
            raise UserError(f"MODEL is {reference!r}; name a registered model's alias, such as slimtower@champion")
        self.name, self.alias = name, alias
        self._anew: set[Path] = set()  # places in the cache that were filled a second time

    def poll(self) -> dict[str, Hashable]:
        if (database := sqlite_file()) and not database.is_file():  # asking would make it
            raise UserError(f"{database} is not there: set MLFLOW_TRACKING_URI, or promote a release (`make promote`)")
        with reaching():
            version = self._version()
        return {self.alias: (str(version.version), str(version.source))}

    def load(self, name: str, key: Hashable) -> Served:
        """Download the version where no process did before, load it, and say who made and who promoted it."""
        with reaching():
            version = self._version()
            if (str(version.version), str(version.source)) != key:
                raise UserError(f"models:/{self.name}@{self.alias} moved on while it was loaded")
            events = self._promotions(str(version.version))
            release = self._opened(version)
        tags: dict[str, str] = dict(version.tags)
        last: dict[str, Any] = max(events, key=lambda event: str(event.get("at", "")), default={})
        origin = Origin(
            source=f"models:/{self.name}@{self.alias}",
            version=str(version.version),
            created=stamp(int(version.creation_timestamp) / 1000),
            commit=tags.get(f"{_PREFIX}git_commit", ""),
            data=tags.get(f"{_PREFIX}data_md5", ""),
            run=tags.get(f"{_PREFIX}pipeline_run", ""),
            promoted=str(last.get("at") or ""),
            promoted_by=str(last.get("by") or ""),
        )
        return Served(name, release, origin, stamp(time.time()))

    def default(self, names: list[str]) -> str:
        return names[0]

    def _version(self) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return client().get_model_version_by_alias(self.name, self.alias)
        except MlflowException as error:
            if error.error_code not in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
                raise
            raise UserError(
                f"models:/{self.name}@{self.alias}: nothing of that name at {tracking_uri()}; run `make promote`"
            ) from None

    def _promotions(self, version: str) -> list[dict[str, Any]]:
        """The audit trail's events that made a version the champion."""
        tags: dict[str, str] = client().get_registered_model(self.name).tags
        events = [_event(value) for key, value in tags.items() if key.startswith(_EVENT)]
        return [event for event in events if event.get("version") == version]

    def _opened(self, version: Any) -> Release:
        """A version's release; where it does not open, once from new files: a power failure may have cut the old."""
        identity = f"{tracking_uri()}\0{version.source}\0{version.creation_timestamp}"
        digest = hashlib.sha256(identity.encode("utf-8")).hexdigest()[:16]
        target = cache_root() / "serve" / self.name / f"{version.version}-{digest}"
        try:
            return load_release(self._fetched(version, target), THREADS)
        except UserError as error:
            if isinstance(error, TransientError) or target in self._anew:
                raise
        self._anew.add(target)
        with file_lock(target.parent / ".lock"):
            shutil.rmtree(target, ignore_errors=True)
        return load_release(self._fetched(version, target), THREADS)

    def _fetched(self, version: Any, target: Path) -> Path:
        folder = target.parent
        with file_lock(folder / ".lock"):
            if not target.is_dir():
                with staged_folder(target) as staging:
                    _download(f"models:/{self.name}/{version.version}", staging)
            target.touch()
            versions = sorted((path for path in folder.iterdir() if path.is_dir()), key=last_used)
            for old in versions[:-_CACHED_VERSIONS]:  # what is mapped stays readable
                shutil.rmtree(old, ignore_errors=True)
        return _release_in(target)


def _event(text: str) -> dict[str, Any]:
    """An event of the audit trail; empty if it is damaged, as the champion serves all the same."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _download(uri: str, into: Path) -> None:
    from mlflow.artifacts import download_artifacts

    download_artifacts(artifact_uri=uri, dst_path=str(into), tracking_uri=tracking_uri())


def _release_in(folder: Path) -> Path:
    for manifest in sorted(folder.rglob("manifest.json"), key=lambda path: len(path.parts)):
        if (manifest.parent / "query_encoder").is_dir():
            return manifest.parent
    raise UserError(f"{folder}: holds no release; let the alias name a version that `make promote` registered")
