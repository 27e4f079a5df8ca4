"""Runs of MLflow: what a stage can say of itself, and the experiment that holds its run.

stage_run.py opens the run of a stage, run_ids.py says of which parent.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slimtower.common.errors import TransientError, UserError, exhausted
from slimtower.common.masking import redacted
from slimtower.registry.client import ARTEFACTS, opening, sqlite_file, tracking_uri, unusable_root

_KIND = {"mlflow.experimentKind": "custom_model_development"}  # else its pages call models agents
NOTE = "mlflow.note.content"  # the tag that its pages show as a run's description, in Markdown
_LONGEST = 8000  # characters of a tag
_DIGEST = 12  # signs that are shown of a data set's digest
Build = Callable[[Path], None]


class Run:
    """What a stage may say about itself. It hands every call on to `record`, which records nothing here."""

    def record(self, call: str, **arguments: Any) -> None:
        """Take a call of MlflowRun."""

    def param(self, name: str, value: object) -> None:
        """Record one parameter or fact without its secrets; long values are cut to MLflow's limit."""
        self.record("param", name=name, value=redacted(str(value)))

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record one measurement, at a step where it has a history."""
        self.metrics({name: value}, step)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        plain = {name: float(value) for name, value in values.items()}
        self.record("metrics", values=plain, step=int(step or 0), at=now_ms())

    def tag(self, name: str, value: str) -> None:
        """Set one tag, without its secrets."""
        self.record("tag", name=name, value=redacted(value))

    def dataset(self, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        """Name data that the run is of; `digest`: hex, of which the first digits are told."""
        self.record("dataset", name=name, digest=digest, counts=dict(counts))

    def artifact(self, path: Path) -> None:
        self.record("artifact", path=path)

    def model(self, folder: Path, name: str) -> None:
        """Attach a model folder as a logged model that names this run as its source."""
        self.record("model", folder=folder, name=name)

    def built_model(self, name: str, content: str, build: Build, *, once: bool = False) -> None:
        """Attach the model folder that `build` writes into the path it is given; `content` is a digest of it.

        With `once`, an equal model of this name that was logged before is attached instead of a copy.
        """


NullRun = Run


def experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "slimtower")


def known_experiment(api: Any) -> Any:
    """MLflow's record of the project's experiment; None where it was not made yet."""
    with opening():
        return api.get_experiment_by_name(experiment_name())


def experiment_id(api: Any) -> str:
    """Id of the project's experiment, made on first use; its artefacts lie beside the sqlite file.

    UserError for one that was deleted: MLflow takes no run of it, and no other one of that name.
    """
    name, experiment = experiment_name(), known_experiment(api)
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise UserError(
            f"{tracking_uri()}: the experiment {name!r} was deleted there; restore it (`mlflow experiments restore"
            f" --experiment-id {experiment.experiment_id}`), or let MLFLOW_EXPERIMENT_NAME name another one"
        )
    database = sqlite_file()
    if experiment is not None:
        if database and not _KIND.items() <= experiment.tags.items():
            api.set_experiment_tag(experiment.experiment_id, *next(iter(_KIND.items())))
        return str(experiment.experiment_id)
    location = (database.resolve().parent / ARTEFACTS).as_uri() if database else None
    from mlflow.exceptions import MlflowException

    try:
        return str(api.create_experiment(name, artifact_location=location, tags=_KIND))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return str(api.get_experiment_by_name(name).experiment_id)  # another process was faster


class MlflowRun(Run):
    """A run in MLflow. Times are milliseconds since 1970; without one it is now."""

    def __init__(self, api: Any, run_id: str, experiment: str) -> None:
        self.api, self.run_id, self.experiment = api, run_id, experiment

    def param(self, name: str, value: object) -> None:
        self.api.log_param(self.run_id, name, redacted(str(value))[:6000])

    def metrics(self, values: Mapping[str, float], step: int | None = None, at: int | None = None) -> None:
        from mlflow.entities import Metric

        at = at or now_ms()
        rows = [Metric(_metric_name(name), float(value), at, step or 0) for name, value in values.items()]
        for start in range(0, len(rows), 900):  # a batch holds at most 1000
            self.api.log_batch(self.run_id, metrics=rows[start : start + 900])

    def tag(self, name: str, value: str) -> None:
        self.api.set_tag(self.run_id, name, redacted(value))

    def dataset(self, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput

        source = json.dumps({"uri": "data/ingest"})
        entity = Dataset(name, digest[:_DIGEST], "local", source, profile=json.dumps(flatten(counts)))
        self.api.log_inputs(self.run_id, [DatasetInput(entity, [])])

    def artifact(self, path: Path) -> None:
        with self.storing(path):
            self.api.log_artifact(self.run_id, str(path))

    def model(self, folder: Path, name: str, tags: Mapping[str, str] | None = None) -> None:
        logged = self.api.create_logged_model(self.experiment, name, self.run_id, tags=dict(tags or {}))
        with self.storing(folder):
            self.api.log_model_artifacts(logged.model_id, str(folder))
        self.api.finalize_logged_model(logged.model_id, "READY")
        self._output(logged.model_id)

    def built_model(self, name: str, content: str, build: Build, *, once: bool = False) -> None:
        if once and (equal := self._logged(name, content)):
            self._output(equal)
            return
        with tempfile.TemporaryDirectory() as scratch:
            build(Path(scratch) / "model")
            self.model(Path(scratch) / "model", name, {"slimtower.content": content})

    def _logged(self, name: str, content: str) -> str | None:
        """Id of a whole model of that name and content whose files are still there."""
        condition = f"name = '{name}' AND tags.`slimtower.content` = '{content}'"
        model_ids = (str(model.model_id) for model in self.api.search_logged_models([self.experiment], condition))
        return next(filter(self.has_model, model_ids), None)

    def has_model(self, model: str) -> bool:
        """Tell whether a logged model is whole and its files are still there."""
        from mlflow.exceptions import MlflowException

        try:
            logged = self.api.get_logged_model(model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        with self.storing():
            return str(logged.status) == "READY" and bool(self.api.list_logged_model_artifacts(model))

    @contextmanager
    def storing(self, source: Path | None = None) -> Iterator[None]:
        """UserError if this machine cannot use the experiment's artefact root; `source`: what is stored there."""
        from mlflow.exceptions import MlflowException
        from requests import RequestException

        try:
            yield
        except RequestException:
            raise
        except (ImportError, OSError, MlflowException) as error:
            unknown = "Could not find a registered artifact repository" in str(error)
            if (source is not None and not source.exists()) or (isinstance(error, MlflowException) and not unknown):
                raise
            if isinstance(exhausted(error), TransientError):  # a full disk
                raise
            root = self.api.get_experiment(self.experiment).artifact_location
            raise unusable_root(root, tracking_uri(), error) from error

    def end(self, status: str, at: int | None = None) -> None:
        """Close the run as FINISHED, FAILED or KILLED."""
        self.api.set_terminated(self.run_id, status, at)

    def _output(self, model: str) -> None:
        from mlflow.entities import LoggedModelOutput

        self.api.log_outputs(self.run_id, [LoggedModelOutput(model_id=model, step=0)])
        self.tag("slimtower.model", model)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _metric_name(name: str) -> str:
    """With the signs that MLflow allows: `R_rel_2_at_100` of `R(rel=2)@100`."""
    return re.sub(r"[^\w./: -]", "_", re.sub(r"\)?@", "_at_", name))


def shortened(text: str) -> str:
    """The whole lines of a text that a tag has room for."""
    return text if len(text) <= _LONGEST else text[:_LONGEST].rpartition("\n")[0]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level with dotted keys; lists as JSON."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{key}.")
        else:
            flat[key] = json.dumps(value) if isinstance(value, list | tuple) else value
    return flat
