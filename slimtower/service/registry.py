"""The champion of a registered model: which version it is, and its files in a cache that all processes share."""

import hashlib
import json
import shutil
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import cache_root, file_lock, last_used, staged_folder
from slimtower.registry.client import client, reaching, tracking_uri
from slimtower.service.sources import THREADS
from slimtower.service.systems import Origin, Served, stamp
from slimtower.serving.release import Release, load_release

_PREFIX = "slimtower."  # of the tags that `make promote` sets
_EVENT = f"{_PREFIX}event."  # of a registered model's audit trail
_CACHED_VERSIONS = 3  # versions in the cache


class RegistrySource:
    """`NAME@alias` of MLflow's registry. One system answers, under the alias' name."""

    def __init__(self, reference: str) -> None:
        name, at, alias = reference.removeprefix("models:/").partition("@")
        if not (name and at and alias):
            raise UserError(f"MODEL is {reference!r}; name a registered model's alias, such as slimtower@champion")
        self.name, self.alias = name, alias
        self._anew: set[Path] = set()  # places in the cache that were filled a second time

    def poll(self) -> dict[str, Hashable]:
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
        """The release of a version among its files in the cache."""
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
