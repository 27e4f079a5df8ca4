"""The one place where runs are tracked: MLflow, a sqlite file by default, any server by MLFLOW_TRACKING_URI.

A stage logs a child run. Its parent is the run named by SLIMTOWER_PARENT_RUN, else the one keyed by the calling
pipeline (SLIMTOWER_PIPELINE, set by `make`), else by the process that started the stage (a plain `dvc repro`).
"""

import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, Protocol

from steps.core.errors import TransientError, UserError, line
from steps.core.files import read_json, sha256_file, sha256_text
from steps.core.masking import redacted

os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # of files on this very disk, mostly
# What loading a release imports, and nothing more.
SERVED_MODULES = (
    "__init__", "errors", "files", "index_files", "masking", "names", "query_encoder", "release",
    "release_checks", "release_manifest", "tower_files", "widths",
)  # fmt: skip
SERVED_PACKAGES = ("mlflow", "numpy", "onnxruntime", "pandas", "pyarrow", "pydantic", "tokenizers")
_REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
_S3_REFUSED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "(403)", "(401)")
_STORE_FAILED = ("failures occurred while", "Failed to list artifacts")  # how MLflow tells of its artefact store
EXPERIMENT = os.environ.get("MLFLOW_EXPERIMENT_NAME", "slimtower")


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

    def artifact(self, path: Path) -> None:
        """Attach a file."""

    def model(self, folder: Path, name: str) -> None:
        """Attach a model folder as a logged model."""

    def served(self, folder: Path, name: str, code: Path, *, once: bool = False) -> None:
        """Attach a release folder as a logged model that `mlflow models serve` serves; `code` is its model file.

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

    def artifact(self, path: Path) -> None:
        """Ignore."""

    def model(self, folder: Path, name: str) -> None:
        """Ignore."""

    def served(self, folder: Path, name: str, code: Path, *, once: bool = False) -> None:
        """Ignore."""


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or a sqlite file in the present folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').resolve()}"


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
        if "failed with exception" in text or error.error_code == "TEMPORARILY_UNAVAILABLE":
            raise TransientError(f"{tracking_uri()}: not reached: {text[:200]}; is the server up?") from error
        raise
    except (requests.RequestException, BotoCoreError, ClientError, Boto3Error) as error:
        raise _store_error(error) from error


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
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=tracking_uri())


def experiment_id(api: Any) -> str:
    """Id of the project's experiment, made on first use; its artefacts lie beside the sqlite file."""
    found = api.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    uri = tracking_uri()
    location = Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" if uri.startswith("sqlite:///") else None
    return str(api.create_experiment(EXPERIMENT, artifact_location=location.as_uri() if location else None))


def pipeline_key() -> str:
    """What tells one pipeline run from another: set by `make`, else the process that called this one."""
    return os.environ.get("SLIMTOWER_PIPELINE") or f"process-{os.getppid()}-{_started(os.getppid())}"


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot, so that a reused pid is another process."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().rpartition(")")[2].split()[19] if stat.is_file() else "0"


def parent_run(api: Any, experiment: str) -> str:
    """Id of the pipeline's parent run; the first stage of a pipeline opens it."""
    if given := os.environ.get("SLIMTOWER_PARENT_RUN"):
        return given
    return pipeline_run(api, experiment, pipeline_key(), git_commit())


def pipeline_run(api: Any, experiment: str, key: str, commit: str) -> str:
    """Id of the parent run of the pipeline with this key; made where there is none yet."""
    found = api.search_runs([experiment], f"tags.`slimtower.pipeline` = '{key}'", max_results=1)
    if found:
        return str(found[0].info.run_id)
    tags = {"slimtower.pipeline": key, "slimtower.git_commit": commit, **scheduler_tags()}
    run = api.create_run(experiment, run_name="pipeline", tags=tags)
    return str(run.info.run_id)


def open_parent(api: Any, experiment: str) -> str | None:
    """Id of the newest parent run that no one has closed, if any; a scheduled one is closed by its own tasks."""
    found = api.search_runs([experiment], "attributes.status = 'RUNNING'", order_by=["start_time DESC"])
    for run in found:
        if "slimtower.pipeline" in run.data.tags and "slimtower.airflow_run" not in run.data.tags:
            return str(run.info.run_id)
    return None


def scheduler_tags() -> dict[str, str]:
    """What only the scheduler knows of a run: its own id and the digest of the image that the run has."""
    known = {"airflow_run": "SLIMTOWER_AIRFLOW_RUN", "image_digest": "SLIMTOWER_IMAGE_DIGEST"}
    return {f"slimtower.{tag}": redacted(value) for tag, name in known.items() if (value := os.environ.get(name))}


def git_commit() -> str:
    """Commit of the working tree, `+dirty` behind it where tracked files differ; `unknown` without git.

    A recipe's worktree is at a commit of its own making: SLIMTOWER_GIT_COMMIT then names the project's.
    """
    if given := os.environ.get("SLIMTOWER_GIT_COMMIT"):
        return given
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run(["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+dirty" if changes.stdout.strip() else "")


class MlflowRun:
    """A child run in MLflow."""

    def __init__(self, api: Any, run_id: str, experiment: str) -> None:
        self.api, self.run_id, self.experiment = api, run_id, experiment

    def param(self, name: str, value: object) -> None:
        """Record one parameter or fact without its secrets; long values are cut to MLflow's limit."""
        self.api.log_param(self.run_id, name, redacted(str(value))[:6000])

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Record one measurement, at a step where it has a history."""
        self.api.log_metric(self.run_id, name.replace("@", "_at_").replace("|", "_"), float(value), step=step or 0)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record several measurements in one call."""
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        rows = [
            Metric(name.replace("@", "_at_").replace("|", "_"), float(value), now, step or 0)
            for name, value in values.items()
        ]
        for start in range(0, len(rows), 900):  # a batch holds at most 1000
            self.api.log_batch(self.run_id, metrics=rows[start : start + 900])

    def tag(self, name: str, value: str) -> None:
        """Set one tag, without its secrets."""
        self.api.set_tag(self.run_id, name, redacted(value))

    def artifact(self, path: Path) -> None:
        """Attach a file."""
        self.api.log_artifact(self.run_id, str(path))

    def model(self, folder: Path, name: str, tags: Mapping[str, str] | None = None) -> None:
        """Attach a model folder as a logged model that names this run as its source."""
        logged = self.api.create_logged_model(self.experiment, name, self.run_id, tags=dict(tags or {}))
        self.api.log_model_artifacts(logged.model_id, str(folder))
        self.api.finalize_logged_model(logged.model_id, "READY")
        self._output(logged.model_id)

    def served(self, folder: Path, name: str, code: Path, *, once: bool = False) -> None:
        """Attach a release folder as a logged model that `mlflow models serve` serves; `code` is its model file.

        With `once`, an equal model of this name that was logged before is attached instead of a copy.
        """
        tags = {"slimtower.content": _served_content(folder, code)}
        if once and (equal := self._logged(name, tags["slimtower.content"])):
            self._output(equal)
            return
        with tempfile.TemporaryDirectory() as scratch:
            save_served_model(folder, code, Path(scratch) / "model")
            self.model(Path(scratch) / "model", name, tags)

    def _logged(self, name: str, content: str) -> str | None:
        """Id of a whole model of that name and content whose files are still there."""
        wanted = f"name = '{name}' AND tags.`slimtower.content` = '{content}'"
        for found in self.api.search_logged_models([self.experiment], wanted):
            if str(found.status) == "READY" and self.api.list_logged_model_artifacts(found.model_id):
                return str(found.model_id)
        return None

    def _output(self, model: str) -> None:
        from mlflow.entities import LoggedModelOutput

        self.api.log_outputs(self.run_id, [LoggedModelOutput(model_id=model, step=0)])
        self.tag("slimtower.model", model)


def _served_content(release: Path, code: Path) -> str:
    """Digest of all that a served model is made from; the release's manifest holds the digests of its files."""
    modules = [Path(__file__).parents[1] / module for module in _served_modules()]
    digests = [sha256_file(path) for path in (release / "manifest.json", release / "report.json", code, *modules)]
    return sha256_text("\n".join([*digests, *_served_requirements()]))


def _served_modules() -> list[str]:
    return ["__init__.py", *(f"core/{name}.py" for name in SERVED_MODULES)]


def _served_requirements() -> list[str]:
    faiss = packages_distributions()["faiss"][0]  # faiss-cpu or one of its siblings
    return [f"{name}=={version(name)}" for name in (*SERVED_PACKAGES, faiss)]


def save_served_model(release: Path, code: Path, target: Path) -> None:
    """Save a release folder as an MLflow model in `target`: `code` loads it, beside the modules that this needs.

    Models from code: what is saved holds no pickle.
    """
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    text = read_json(release / "manifest.json")["probes"][0]["text"]
    output = [("ids", "string"), ("scores", "double"), ("titles", "string")]
    signature = ModelSignature(
        inputs=Schema([ColSpec("string", "query"), ColSpec("long", "k", required=False)]),
        outputs=Schema([ColSpec(Array(kind), name) for name, kind in output]),
        params=ParamSchema([ParamSpec("k", "long", 10), ParamSpec("dataset", "string", "")]),
    )
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "steps"
        (package / "core").mkdir(parents=True)
        for module in _served_modules():
            shutil.copyfile(Path(__file__).parents[1] / module, package / module)
        mlflow.pyfunc.save_model(
            target,
            python_model=code,
            code_paths=[str(package)],
            artifacts={"release": str(release)},
            signature=signature,
            input_example={"query": [text], "k": [5]},
            pip_requirements=_served_requirements(),
        )


@contextmanager
def stage_run(stage: str, params: Mapping[str, Any]) -> Iterator[Run]:
    """Open the child run of a stage (`distill@2l` for a cell), log its params, close it FINISHED or FAILED."""
    api = client()
    experiment = experiment_id(api)
    tags = {
        "mlflow.parentRunId": parent_run(api, experiment),
        "slimtower.stage": stage,
        "slimtower.git_commit": git_commit(),
        **scheduler_tags(),
    }
    run = MlflowRun(api, str(api.create_run(experiment, run_name=stage, tags=tags).info.run_id), experiment)
    try:
        for name, value in flatten(params).items():
            run.param(name, value)
        yield run
    except BaseException:
        api.set_terminated(run.run_id, "FAILED")
        raise
    api.set_terminated(run.run_id, "FINISHED")


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
