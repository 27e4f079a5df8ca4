"""The one place where runs are tracked: MLflow, a sqlite file by default, any server by MLFLOW_TRACKING_URI.

stage_run.py opens the run of a stage, run_ids.py says of which parent.
"""

import fcntl
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from steps.core.errors import TransientError, UserError, exhausted, line
from steps.core.masking import redacted

_SETTINGS = {
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # of files on this very disk, mostly
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # after 0, 4 and 8 seconds; a stage keeps what it cannot send
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # seconds
}
_REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
_S3_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "(403)", "(401)")
_AWAY = ("failed with exception", "failed with timeout exception")  # how MLflow tells of its server
_STORE_FAILED = ("failures occurred while", "Failed to list artifacts")  # how MLflow tells of its artefact store
_DIGEST = 12  # signs that are shown of a data set's digest
Build = Callable[[Path], None]


class Run(Protocol):
    """What a stage may say about itself."""

    def param(self, name: str, value: object) -> None:
        """Record one parameter or fact."""

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record one measurement, at a step where it has a history."""

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record several measurements."""

    def tag(self, name: str, value: str) -> None:
        """Set one tag."""

    def dataset(self, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        """Name data that the run is of; `digest`: hex, of which the first digits are told."""

    def artifact(self, path: Path) -> None:
        """Attach a file."""

    def model(self, folder: Path, name: str) -> None:
        """Attach a model folder as a logged model."""

    def built_model(self, name: str, content: str, build: Build, *, once: bool = False) -> None:
        """Attach the model folder that `build` writes into the path it is given; `content` is a digest of it.

        With `once`, an equal model of this name that was logged before is attached instead of a copy.
        """


class NullRun:
    """A run that records nothing."""

    def param(self, name: str, value: object) -> None:
        """Ignore."""

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Ignore."""

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Ignore."""

    def tag(self, name: str, value: str) -> None:
        """Ignore."""

    def dataset(self, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        """Ignore."""

    def artifact(self, path: Path) -> None:
        """Ignore."""

    def model(self, folder: Path, name: str) -> None:
        """Ignore."""

    def built_model(self, name: str, content: str, build: Build, *, once: bool = False) -> None:
        """Ignore."""


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or a sqlite file in the present folder; a relative path of one is of this folder, too."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    relative = re.fullmatch(r"sqlite:///([^/].*)", uri)
    return f"sqlite:///{Path(relative[1]).resolve()}" if relative else uri


@contextmanager
def reaching() -> Iterator[None]:
    """Failures of the tracking server or of the artefact store as errors that say whether to try again."""
    import requests
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        text = line(error)
        if any(begin in text for begin in _STORE_FAILED):
            raise _store_error(error) from error
        if error.error_code in _REFUSED or "error code 401" in text or "error code 403" in text:
            raise UserError(
                f"{tracking_uri()}: the server refused: {text[:200]}; check MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD"
            ) from error
        if any(words in text for words in _AWAY) or error.error_code == "TEMPORARILY_UNAVAILABLE":
            raise TransientError(f"{tracking_uri()}: not reached: {text[:200]}; is the server up?") from error
        raise
    except (requests.RequestException, BotoCoreError, ClientError, Boto3Error) as error:
        raise _store_error(error) from error


class Unwanted(UserError):
    """What MLflow will not have, whenever it is sent."""


@contextmanager
def sending() -> Iterator[None]:
    """As `reaching`, for what was kept to be sent later: any other failure of MLflow's is Unwanted."""
    from mlflow.exceptions import MlflowException

    try:
        with reaching():
            yield
    except MlflowException as error:
        raise Unwanted(line(error)) from error


def _store_error(error: Exception) -> UserError:
    """A refusal of the artefact store, which stays one, or a failure on the way to it."""
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    said = f"artefact store of {tracking_uri()}: {line(error)[:300]}"
    refused = getattr(error, "error_code", None) in _REFUSED or any(code in str(error) for code in _S3_REFUSED)
    if refused or isinstance(error, NoCredentialsError | PartialCredentialsError):
        return UserError(f"{said}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket")
    return TransientError(f"{said}; try again")


def client() -> Any:
    """An MlflowClient on the tracking URI, quiet about its own database migrations."""
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with _alone(), opening():
        return MlflowClient(tracking_uri=tracking_uri())


@contextmanager
def _alone() -> Iterator[None]:
    """No other process meanwhile, where the store is a file of SQLite: two that make its tables at once both fail."""
    with ExitStack() as held:
        if path := _sqlite_file():
            with suppress(OSError):  # no folder, which is told later; a file system without locks
                handle = os.open(path.parent, os.O_RDONLY)
                held.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sqlite_file() -> Path | None:
    uri = tracking_uri()
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


@contextmanager
def opening() -> Iterator[None]:
    """The first contact with the tracking store: what fails there, but for a network, is a UserError."""
    uri = tracking_uri()
    if path := _sqlite_file():
        _check_sqlite(path)
    try:
        with reaching():
            yield
    except UserError:
        raise
    except Exception as error:  # of MLflow, of SQLAlchemy, of a driver that is not there
        said = f"{type(error).__name__}: {line(error)[:200]}"
        raise exhausted(error) or UserError(
            f"{uri}: cannot be used for tracking ({said}); fix MLFLOW_TRACKING_URI, or unset it for mlflow.db here"
        ) from error


def _check_sqlite(path: Path) -> None:
    """UserError for what is no database of SQLite, which MLflow would try to open for minutes."""
    if path.is_file():
        with path.open("rb") as file:
            begin = file.read(16)
        fault = "is no database of SQLite" if begin not in (b"", b"SQLite format 3\0") else ""
    elif path.exists():
        fault = "is not a file"
    else:
        fault = "" if path.parent.is_dir() else f"{path.parent} is no folder"
    if fault:
        raise UserError(f"MLFLOW_TRACKING_URI names {path}, but {fault}; name another file, or unset it")


def experiment_id(api: Any) -> str:
    """Id of the project's experiment, made on first use; its artefacts lie beside the sqlite file.

    UserError for one that was deleted: MLflow takes no run of it, and no other one of that name.
    """
    with _alone():
        return _experiment_id(api, os.environ.get("MLFLOW_EXPERIMENT_NAME", "slimtower"))


def _experiment_id(api: Any, name: str) -> str:
    with opening():
        found = api.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise UserError(
            f"{tracking_uri()}: the experiment {name!r} was deleted there; restore it (`mlflow experiments restore"
            f" --experiment-id {found.experiment_id}`), or let MLFLOW_EXPERIMENT_NAME name another one"
        )
    if found is not None:
        return str(found.experiment_id)
    path = _sqlite_file()
    location = path.parent / "mlartifacts" if path else None
    return str(api.create_experiment(name, artifact_location=location.as_uri() if location else None))


class MlflowRun:
    """A run in MLflow. Times are milliseconds since 1970; without one it is now."""

    def __init__(self, api: Any, run_id: str, experiment: str) -> None:
        self.api, self.run_id, self.experiment = api, run_id, experiment

    def param(self, name: str, value: object) -> None:
        """Record one parameter or fact without its secrets; long values are cut to MLflow's limit."""
        self.api.log_param(self.run_id, name, redacted(str(value))[:6000])

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record one measurement, at a step where it has a history."""
        self.metrics({name: value}, step)

    def metrics(self, values: Mapping[str, float], step: int | None = None, at: int | None = None) -> None:
        """Record several measurements in one call."""
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        at = at or get_current_time_millis()
        rows = [Metric(_metric_name(name), float(value), at, step or 0) for name, value in values.items()]
        for start in range(0, len(rows), 900):  # a batch holds at most 1000
            self.api.log_batch(self.run_id, metrics=rows[start : start + 900])

    def tag(self, name: str, value: str) -> None:
        """Set one tag, without its secrets."""
        self.api.set_tag(self.run_id, name, redacted(value))

    def dataset(self, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        """Name data that the run is of; `digest`: hex, of which the first digits are told."""
        from mlflow.entities import Dataset, DatasetInput

        source = json.dumps({"uri": "data/ingest"})
        told = Dataset(name, digest[:_DIGEST], "local", source, profile=json.dumps(flatten(counts)))
        self.api.log_inputs(self.run_id, [DatasetInput(told, [])])

    def artifact(self, path: Path) -> None:
        """Attach a file."""
        self.api.log_artifact(self.run_id, str(path))

    def model(self, folder: Path, name: str, tags: Mapping[str, str] | None = None) -> None:
        """Attach a model folder as a logged model that names this run as its source."""
        logged = self.api.create_logged_model(self.experiment, name, self.run_id, tags=dict(tags or {}))
        self.api.log_model_artifacts(logged.model_id, str(folder))
        self.api.finalize_logged_model(logged.model_id, "READY")
        self._output(logged.model_id)

    def built_model(self, name: str, content: str, build: Build, *, once: bool = False) -> None:
        """Attach the model folder that `build` writes into the path it is given; `content` is a digest of it.

        With `once`, an equal model of this name that was logged before is attached instead of a copy.
        """
        if once and (equal := self._logged(name, content)):
            self._output(equal)
            return
        with tempfile.TemporaryDirectory() as scratch:
            build(Path(scratch) / "model")
            self.model(Path(scratch) / "model", name, {"slimtower.content": content})

    def _logged(self, name: str, content: str) -> str | None:
        """Id of a whole model of that name and content whose files are still there."""
        wanted = f"name = '{name}' AND tags.`slimtower.content` = '{content}'"
        for found in self.api.search_logged_models([self.experiment], wanted):
            if str(found.status) == "READY" and self.api.list_logged_model_artifacts(found.model_id):
                return str(found.model_id)
        return None

    def end(self, status: str, at: int | None = None) -> None:
        """Close the run as FINISHED, FAILED or KILLED."""
        self.api.set_terminated(self.run_id, status, at)

    def _output(self, model: str) -> None:
        from mlflow.entities import LoggedModelOutput

        self.api.log_outputs(self.run_id, [LoggedModelOutput(model_id=model, step=0)])
        self.tag("slimtower.model", model)


def _metric_name(name: str) -> str:
    """With the signs that MLflow allows: `R_rel_2_at_100` of `R(rel=2)@100`."""
    return re.sub(r"[^\w./: -]", "_", re.sub(r"\)?@", "_at_", name))


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
