"""One registered model of MLflow: its versions, aliases, tags and files."""

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from slimtower.common.errors import UserError, line
from slimtower.registry.client import client, tracking_uri
from steps.tracking.runs import experiment_id, known_experiment

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
PREFIX = "slimtower."
_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}


class Registry:
    """A registered model; UserError for what can be no name. Versions are text; tags get the project's prefix."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[\w.-]+", name):  # it is part of MLflow's filters and of the lock's path
            raise UserError(f"{name!r} is no registered model's name; give letters, digits and . _ - alone")
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri()  # parts of MLflow read it, and so do child processes
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self.name, self.api = name, client()

    def ensure(self, tags: Mapping[str, str]) -> None:
        """Make the registered model where it is missing; `tags` are set on a new one, in the same step."""
        if self._model() is None:
            try:
                self.api.create_registered_model(self.name, tags={PREFIX + key: value for key, value in tags.items()})
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise

    def aliases(self) -> dict[str, str]:
        """Alias -> version; empty when the model is not registered."""
        model = self._model()
        return {alias: str(version) for alias, version in model.aliases.items()} if model else {}

    def point(self, alias: str, version: str | None) -> None:
        """Let the alias name this version, or none."""
        if version is None:
            self.api.delete_registered_model_alias(self.name, alias)
        else:
            self.api.set_registered_model_alias(self.name, alias, version)

    def model_tags(self) -> dict[str, str]:
        """The project's tags on the registered model, keys without prefix."""
        model = self._model()
        return _project_tags(model.tags) if model else {}

    def tag_model(self, key: str, value: str | None) -> None:
        """Set a tag of the registered model, or remove it."""
        if value is not None:
            self.api.set_registered_model_tag(self.name, PREFIX + key, value)
        elif key in self.model_tags():
            self.api.delete_registered_model_tag(self.name, PREFIX + key)

    def versions(self) -> list[Any]:
        """Every version, oldest first."""
        versions, token = [], None
        while True:
            page = self.api.search_model_versions(f"name = '{self.name}'", max_results=200, page_token=token)
            versions += page
            token = page.token
            if not token:
                return sorted(versions, key=lambda version: int(version.version))

    def version(self, version: str) -> Any:
        """One version; UserError when there is none of that number."""
        is_storable = len(version) < 10  # a database's integers end there
        if is_storable and (entry := _or_none(self.api.get_model_version, self.name, version)):
            return entry
        registered = [str(item.version) for item in self.versions()]
        raise UserError(f"{self.name}: no version {version!r}; registered are {registered}")

    def existing(self, version: str | None) -> str | None:
        """The number of a version that is still there; None for one that was deleted."""
        return version if version in {str(item.version) for item in self.versions()} else None

    def all_tags(self) -> dict[str, dict[str, str]]:
        """Number -> the project's tags, of every version, oldest first."""
        return {str(item.version): _project_tags(item.tags) for item in self.versions()}

    def tags(self, version: str) -> dict[str, str]:
        """The project's tags on a version, keys without prefix."""
        return _project_tags(self.version(version).tags)

    def tag(self, version: str, values: Mapping[str, str | None]) -> None:
        """Set tags of a version, None removes one."""
        present = self.tags(version) if None in values.values() else {}
        for key, value in values.items():
            if value is not None:
                self.api.set_model_version_tag(self.name, version, PREFIX + key, value)
            elif key in present:
                self.api.delete_model_version_tag(self.name, version, PREFIX + key)

    def download(self, version: str, into: Path) -> Path:
        """Fetch a version's files; returns the release folder among them. UserError when it holds no release."""
        uri = f"models:/{self.name}/{version}"
        folder = Path(download_artifacts(artifact_uri=uri, dst_path=str(into), tracking_uri=tracking_uri()))
        for manifest in sorted(folder.rglob("manifest.json"), key=lambda path: len(path.parts)):
            if (manifest.parent / "query_encoder").is_dir():
                return manifest.parent
        raise UserError(
            f"{uri}: holds no release (no manifest.json beside query_encoder/), so nothing can be compared with it; let"
            " its alias name a version that `make promote` registered, or none"
        )

    def log_document(self, version: str, name: str, document: Any) -> None:
        """Keep a JSON document with the run that registered the version."""
        run_id = str(self.version(version).run_id)
        self.api.log_text(run_id, json.dumps(document, indent=1, sort_keys=True) + "\n", name)

    def document(self, version: str, name: str) -> Any | None:
        """A JSON document of the version's run, or None when there is none or its upload was cut short."""
        run_id, folder = self.version(version).run_id, name.rpartition("/")[0]
        if not run_id or name not in self.artifacts(run_id, folder):
            return None
        with tempfile.TemporaryDirectory() as scratch:
            text = self.fetch(run_id, name, Path(scratch)).read_text(encoding="utf-8")
        try:
            return json.loads(text)
        except ValueError:
            return None

    def has_run(self, version: str) -> bool:
        """Whether the run that registered a version is still there, so that documents can be kept with it."""
        run_id = self.version(version).run_id
        return bool(run_id) and self.run(run_id) is not None

    def run(self, run_id: str) -> Any | None:
        """A run; None for one that is gone, as `mlflow gc` removes what was deleted."""
        return _or_none(self.api.get_run, run_id)

    def artifacts(self, run_id: str, folder: str = "") -> set[str]:
        """Paths of the files of a run, below a folder of its; none of a run that is gone."""
        return {item.path for item in _or_none(self.api.list_artifacts, run_id, folder or None) or ()}

    def fetch(self, run_id: str, name: str, into: Path) -> Path:
        """Download one small file of a run."""
        return Path(self.api.download_artifacts(run_id, name, str(into)))

    def has_experiment(self) -> bool:
        """Whether the project's experiment was made."""
        return known_experiment(self.api) is not None

    def experiment(self) -> str:
        """Id of the project's experiment, made where it is missing."""
        return experiment_id(self.api)

    def _model(self) -> Any | None:
        return _or_none(self.api.get_registered_model, self.name)


def _or_none(call: Callable[..., Any], *arguments: Any) -> Any | None:
    try:
        return call(*arguments)
    except MlflowException as error:
        if error.error_code not in _ABSENT:
            raise
        return None


def _project_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)}


@contextmanager
def reading(document: str, remedy: str) -> Iterator[None]:
    """UserError, which names the document and the remedy, for what is not as its reader expects it."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {line(error)[:200]}"
        raise UserError(f"{document}: damaged, or of another version ({reason}); {remedy}") from error
