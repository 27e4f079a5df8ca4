"""dags/deployment.yaml, with the file that SLIMTOWER_DEPLOYMENT names laid over it, as checked settings."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from slimtower_dags.graph import Graph, SettingsError, overlay, read_mapping

# a password before @ or in the query; before @ of others than Postgres nothing but one
_PASSWORD = re.compile(r"(?i)://[^@/]*:[^@]*@|[?&](?:(?:ssl)?password|api.?key|key|token)=|^(?!postgres)[^/]*://.*@")


def _text(value: Any) -> Any:
    """A value of an environment or of labels; as YAML spells it where it is no text."""
    if value is None or isinstance(value, dict | list):
        raise ValueError(f'{"empty" if value is None else repr(value)}; give a text, "" for none')
    return str(value).lower() if isinstance(value, bool) else str(value)


_OTHER_TASKS = {"begin", "publish", "promote", "deploy", "rollback"}  # that are no stages

Texts = dict[Annotated[str, BeforeValidator(str)], Annotated[str, BeforeValidator(_text)]]


class Settings(BaseModel):
    """Every key is known, and every value is of its type."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _know_all_keys(cls, values: Any) -> Any:
        names = [field.alias or name for name, field in cls.model_fields.items()]
        for key in values if isinstance(values, dict) else ():
            if key not in names:
                raise ValueError(f"{key} is unknown; {_fix(str(key), names)}")
        return values


class Images(Settings):
    """How images are named."""

    prefix: str
    tag: str
    gpu_tag: str
    digests: Texts


class Docker(Settings):
    """The engine at DOCKER_HOST."""

    network: str
    cache: str
    mounts: list[dict[str, Any]]
    pass_: list[str] = Field(alias="pass")


class Kubernetes(Settings):
    """The cluster in which Airflow runs, or that of its connection `kubernetes_default`."""

    namespace: str
    secrets: list[str]
    service_account: str
    pull_secrets: list[str]
    cache_claim: str
    user: int
    node_selector: Texts
    gpu_node_selector: Texts
    gpu_tolerations: list[dict[str, Any]]
    start_timeout_s: int = Field(gt=0)


class Promotion(Settings):
    approval: bool
    approval_hours: float = Field(gt=0)
    deploy_to: str


class Resources(Settings):
    """What one task asks for, and how it trains."""

    cpus: float = Field(gt=0)
    memory_gib: float = Field(gt=0)
    shm_gib: float = Field(ge=0)
    disk_gib: float = Field(ge=0)
    gpus: int = Field(ge=0)
    pool: str
    processes: int = Field(ge=0)
    micro_batch: int = Field(ge=0)
    timeout_h: float = Field(gt=0)
    environment: Texts


class Deployment(Settings):
    """All settings; dags/deployment.yaml says what each means."""

    runner: Literal["process", "docker", "kubernetes"]
    schedule: str
    window_days: int | None = Field(ge=0)
    recipe: str
    variables: Texts
    ref: str
    parallel: int = Field(ge=1)
    retries: int = Field(ge=0)
    retry_delay_s: int = Field(ge=0)
    environment: Texts
    images: Images
    docker: Docker
    kubernetes: Kubernetes
    promote: Promotion
    defaults: Resources
    stages: dict[str, Resources]

    def resources(self, step: str, cell: str = "") -> Resources:
        """What a task asks for: its cell's settings, else its step's, else the defaults."""
        return self.stages.get(f"{step}@{cell}", self.stages.get(step, self.defaults))

    def check_steps(self, graph: Graph) -> None:
        """Raise SettingsError if a key of `stages` or `images.digests` is of no task of a DAG and no step."""
        steps = sorted(graph.steps | _OTHER_TASKS)
        built = sorted(graph.steps | {"promote", "deploy"})
        for key in self.images.digests:
            if key not in built:
                raise SettingsError(f"deployment: images.digests.{key} is of no image; {_fix(key, built)}")
        for key in self.stages:
            step, _, cell = key.partition("@")
            if step not in steps:
                raise SettingsError(f"deployment: stages.{key} is of no step; {_fix(key, steps, 'stages.')}")
            if cell and key not in graph.stages:
                cells = [address for address in graph.stages if address.startswith(f"{step}@")]
                raise SettingsError(f"deployment: stages.{key} is no cell of {step}; {_fix(key, cells, 'stages.')}")

    def check_variables(self, names: Sequence[str]) -> None:
        """Raise SettingsError when a key of `variables` is none that the recipe reads."""
        for key in self.variables:
            if key not in names:
                of = f"is not read by {self.recipe}" if self.recipe else "is of no recipe; name one as `recipe`"
                fix = f"; {_fix(key, names, 'variables.')}" if names else ""
                raise SettingsError(f"deployment: variables.{key} {of}{fix}")

    def image(self, step: str, *, gpu: bool) -> str:
        name = f"{self.images.prefix}slimtower-{step}"
        if digest := self.images.digests.get(step):
            return f"{name}@{digest}"
        return f"{name}:{self.images.gpu_tag if gpu else self.images.tag}"


def read_deployment(folder: Path) -> Deployment:
    """The settings of `folder`/deployment.yaml and SLIMTOWER_DEPLOYMENT. Raises SettingsError."""
    path = folder / "deployment.yaml"
    settings = read_mapping(path)
    if overlay_path := os.environ.get("SLIMTOWER_DEPLOYMENT"):
        settings = overlay(settings, read_mapping(Path(overlay_path)))
        path = Path(overlay_path)
    defaults, stages = settings["defaults"], settings.pop("stages") or {}
    _check_mapping(path, "defaults", defaults)
    _check_mapping(path, "stages", stages)
    for key in sorted(stages, key=str):  # a step before its cells: `distill` < `distill@4l`
        _check_mapping(path, f"stages.{key}", stages[key] or {})
        step, _, cell = str(key).partition("@")
        stages[key] = overlay(stages.get(step, defaults) if cell else defaults, stages[key] or {})
    try:
        deployment = Deployment.model_validate(settings | {"stages": stages})
    except ValidationError as error:
        raise SettingsError(f"{path}: {_complaint(error)}") from None
    if _PASSWORD.search(deployment.promote.deploy_to):
        raise SettingsError(
            f"{path}: promote.deploy_to holds a password, which Airflow shows; give it as PGPASSWORD, QDRANT_API_KEY or"
            " MILVUS_TOKEN, as a secret"
        )
    return deployment


def _check_mapping(path: Path, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise SettingsError(f"{path}: {name} is {value!r}; give keys and values")


def mebibytes(gib: float) -> str:
    """A size as Kubernetes writes it."""
    return f"{int(gib * 1024)}Mi"


def _complaint(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    if first["type"] == "missing":  # its input is all that stands around it
        return f"{key} is missing"
    return f"{key} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _fix(key: str, names: Sequence[str], where: str = "") -> str:
    """The key that may have been meant, else all that there are."""
    near = difflib.get_close_matches(key, names, 1)
    return f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(names)}"
