"""dags/deployment.yaml, with the file that SLIMTOWER_DEPLOYMENT names laid over it, as checked settings."""

import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slimtower_dags.graph import overlay

RUNNERS = ("process", "docker", "kubernetes")
# a password before @ or in the query; before @ of others than Postgres nothing but one
_PASSWORD = re.compile(r"(?i)://[^@/]*:[^@]*@|[?&](?:(?:ssl)?password|api.?key|key|token)=|^(?!postgres)[^/]*://.*@")


class DeploymentError(ValueError):
    """A setting is wrong; one line names file, key and fix."""


@dataclass(frozen=True)
class Images:
    """How images are named."""

    prefix: str
    tag: str
    gpu_tag: str
    digests: dict[str, str]


@dataclass(frozen=True)
class Docker:
    """The engine at DOCKER_HOST."""

    network: str
    cache: str
    mounts: list[dict[str, Any]]
    pass_: list[str]


@dataclass(frozen=True)
class Kubernetes:
    """The cluster in which Airflow runs, or that of its connection `kubernetes_default`."""

    namespace: str
    secrets: list[str]
    service_account: str
    pull_secrets: list[str]
    cache_claim: str
    user: int
    node_selector: dict[str, str]
    gpu_node_selector: dict[str, str]
    gpu_tolerations: list[dict[str, Any]]
    start_timeout_s: int


@dataclass(frozen=True)
class Promotion:
    """What happens to a new release."""

    approval: bool
    approval_hours: float
    deploy_to: str


@dataclass(frozen=True)
class Resources:
    """What one task asks for, and how it trains."""

    cpus: float
    memory_gib: float
    shm_gib: float
    disk_gib: float
    gpus: int
    pool: str
    processes: int
    micro_batch: int
    timeout_h: float
    environment: dict[str, str]


@dataclass(frozen=True)
class Deployment:
    """All settings; dags/deployment.yaml says what each means."""

    runner: str
    schedule: str
    window_days: int | None
    recipe: str
    variables: dict[str, str]
    ref: str
    parallel: int
    retries: int
    retry_delay_s: int
    environment: dict[str, str]
    images: Images
    docker: Docker
    kubernetes: Kubernetes
    promote: Promotion
    defaults: Resources
    stages: dict[str, Resources]

    def resources(self, step: str, cell: str = "") -> Resources:
        """What a task asks for: its cell's settings, else its step's, else the defaults."""
        return self.stages.get(f"{step}@{cell}", self.stages.get(step, self.defaults))

    def check_steps(self, step_names: Set[str]) -> None:
        """Raise DeploymentError when a key of `stages` is of none of these steps."""
        for key in self.stages:
            if key.partition("@")[0] not in step_names:
                raise DeploymentError(
                    f"deployment: stages.{key} is of no step; there are {', '.join(sorted(step_names))}"
                )

    def check_variables(self, names: Sequence[str]) -> None:
        """Raise DeploymentError when a key of `variables` is none that the recipe reads."""
        for key in self.variables:
            if key not in names:
                of = f"is not read by {self.recipe}" if self.recipe else "is of no recipe; name one as `recipe`"
                fix = f"; {_fix(key, names, 'variables.')}" if names else ""
                raise DeploymentError(f"deployment: variables.{key} {of}{fix}")

    def image(self, step: str, *, gpu: bool) -> str:
        """The image's name."""
        name = f"{self.images.prefix}slimtower-{step}"
        if digest := self.images.digests.get(step):
            return f"{name}@{digest}"
        return f"{name}:{self.images.gpu_tag if gpu else self.images.tag}"


def read_deployment(folder: Path) -> Deployment:
    """The settings of `folder`/deployment.yaml and SLIMTOWER_DEPLOYMENT. Raises DeploymentError."""
    path = folder / "deployment.yaml"
    settings = _mapping(path)
    if overlay_path := os.environ.get("SLIMTOWER_DEPLOYMENT"):
        settings = overlay(settings, _mapping(Path(overlay_path)))
        path = Path(overlay_path)
    defaults = settings["defaults"]
    stages = settings.pop("stages") or {}
    for key in sorted(stages):  # a step before its cells: `distill` < `distill@4l`
        step, _, cell = key.partition("@")
        stages[key] = overlay(stages.get(step, defaults) if cell else defaults, stages[key] or {})
    deployment: Deployment = _checked(Deployment, settings | {"stages": {}}, str(path), "")
    resources = {key: _checked(Resources, value, str(path), f"stages.{key}.") for key, value in stages.items()}
    if deployment.runner not in RUNNERS:
        raise DeploymentError(f"{path}: runner is {deployment.runner!r}; choose one of {', '.join(RUNNERS)}")
    if _PASSWORD.search(deployment.promote.deploy_to):
        raise DeploymentError(
            f"{path}: promote.deploy_to holds a password, which Airflow shows; give it as PGPASSWORD, QDRANT_API_KEY or"
            " MILVUS_TOKEN, as a secret"
        )
    return dataclasses.replace(deployment, stages=resources)


def _mapping(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError(f"{path}: cannot be read ({error.strerror}); correct SLIMTOWER_DEPLOYMENT") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8; 2026-02-31; nested without end
        raise DeploymentError(f"{path}: not YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise DeploymentError(f"{path}: must be a mapping, is {type(loaded).__name__}")
    return loaded


def _checked(kind: Any, values: Any, path: str, where: str) -> Any:
    """A settings class made from a mapping: every key known, every value of its type."""
    if not isinstance(values, dict):
        raise DeploymentError(f"{path}: {where.rstrip('.') or 'the file'} must be a mapping, is {values!r}")
    hints = {name.rstrip("_"): hint for name, hint in typing.get_type_hints(kind).items()}
    for key in values:
        if key not in hints:
            raise DeploymentError(f"{path}: {where}{key} is unknown; {_fix(str(key), list(hints), where)}")
    fields = {}
    for field in dataclasses.fields(kind):
        name = field.name.rstrip("_")
        fields[field.name] = _value(hints[name], values[name], path, f"{where}{name}")
    return kind(**fields)


def _fix(key: str, names: Sequence[str], where: str) -> str:
    """The key that may have been meant, else all that there are."""
    near = difflib.get_close_matches(key, names, 1)
    return f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(names)}"


def _text(value: Any, path: str, where: str) -> str:
    """A value of an environment or of labels; as YAML spells it where it is no text."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, dict | list):
        description = "empty" if value is None else repr(value)
        raise DeploymentError(f'{path}: {where} is {description}; give a text, "" for none')
    return str(value)


def _value(hint: Any, value: Any, path: str, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _checked(hint, value, path, f"{where}.")
    if typing.get_origin(hint) is dict and typing.get_args(hint)[1] is str and isinstance(value, dict):
        return {str(key): _text(item, path, f"{where}.{key}") for key, item in value.items()}
    accepted = typing.get_args(hint) if isinstance(hint, types.UnionType) else (typing.get_origin(hint) or hint,)
    if hint is float:
        accepted = (int, float)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in accepted)
        raise DeploymentError(f"{path}: {where} is {value!r}; give {names}")
    return value
