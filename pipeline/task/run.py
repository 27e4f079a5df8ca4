"""What the tasks of one run share: which run, of which project, where they meet, and what `begin` fixed."""

import hashlib
import json
import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.task.run_store import RunStore, open_store
from pipeline.task.workspace import LOCK, PARAMS, SOURCES, Workspace, workspace
from slimtower.common.errors import UserError
from steps.promote.dvc_lock import Stages, dump_lock

BEGIN = "begin.json"
LATEST = "latest"


@dataclass(frozen=True)
class TaskRun:
    """A run by its id, the project's repository and the store where the run's tasks meet."""

    name: str
    repository: str
    store: RunStore

    @classmethod
    def from_environment(cls) -> "TaskRun":
        """From SLIMTOWER_RUN, SLIMTOWER_REPO and SLIMTOWER_REMOTE; UserError names what is missing or wrong.

        Without MLFLOW_TRACKING_URI, runs are tracked where `make` tracks them: in the project's folder, if it is one.
        """
        name = re.sub(r"[^A-Za-z0-9._-]", "-", _needed("SLIMTOWER_RUN", "the id of this run"))
        if not name.strip("."):
            raise UserError(f"SLIMTOWER_RUN is {name!r}; give a name with letters or digits")
        repository = _needed("SLIMTOWER_REPO", "the git URL or folder of the project")
        if Path(repository).is_dir():
            repository = str(Path(repository).resolve())
        elif Path(repository).is_absolute():
            raise UserError(f"SLIMTOWER_REPO: {repository}: no such folder; give a git URL or folder of the project")
        tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not tracking and not Path(repository).is_dir():
            raise UserError("MLFLOW_TRACKING_URI: not set; name the server on which the tasks of a run meet")
        if not tracking or re.match(r"sqlite:///[^/]", tracking):  # relative: as it reads here, not in a clone
            path = Path(tracking.removeprefix("sqlite:///")).resolve() if tracking else Path(repository) / "mlflow.db"
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{path}"
        return cls(name, repository, open_store(_needed("SLIMTOWER_REMOTE", "s3://bucket/prefix or a folder")))

    @property
    def address(self) -> str:
        """The folder of this run, by which its pipeline is known in MLflow too."""
        return f"{self.store.url}/runs/{self.name}"

    def read_begin(self) -> dict[str, Any] | None:
        """What `begin` fixed for this run; None before."""
        return read_json(self.store, f"runs/{self.name}/{BEGIN}")

    def must_have_begun(self) -> dict[str, Any]:
        """What `begin` fixed; UserError when it did not run."""
        if (record := self.read_begin()) is None:
            raise UserError(f"{self.address}/{BEGIN}: not found; run `begin` with the same SLIMTOWER_RUN first")
        return record

    def workspace(self, reference: str) -> AbstractContextManager[Workspace]:
        """A clone of the project at a commit, its DVC on this run's remote."""
        return workspace(self.repository, reference, self.store.url)

    def lay_out(self, clone: Workspace) -> tuple[Stages, dict[str, Stages]]:
        """Write the run's params, sources and dvc.lock into a clone; returns the lock of the start and the fragments.

        A fragment holds the stages that one task added or changed, by the name of that task.
        """
        base = lay_files(self.store, f"runs/{self.name}", clone)
        folder = f"runs/{self.name}/locks"
        fragments = {}
        for name in self.store.names(folder):
            content = self.store.read(f"{folder}/{name}") or b"{}"
            fragments[name.removesuffix(".yaml")] = dict(yaml.safe_load(content))
        merged = dict(base)
        for fragment in fragments.values():
            merged |= fragment
        write_lock(clone, merged)
        return base, fragments


def lay_files(store: RunStore, folder: str, clone: Workspace) -> Stages:
    """Write params.yaml, sources.json and dvc.lock of a folder of the store into a clone; returns the lock's stages."""
    for name in (PARAMS, SOURCES, LOCK):
        if (content := store.read(f"{folder}/{name}")) is None:
            raise UserError(f"{store.url}/{folder}/{name}: not found; the run there is not complete")
        clone.write(name, content)
    return clone.lock()


def write_lock(clone: Workspace, stages: Stages) -> None:
    """Write dvc.lock; without stages there is none."""
    clone.write(LOCK, dump_lock(stages))


def same_inputs(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Tell whether two runs are of one commit, params and sources."""
    return all(first.get(key) == second.get(key) for key in ("commit", "params", "sources"))


def newer_run(store: RunStore, record: dict[str, Any]) -> str:
    """The run of locks/latest/ if it began after this one and is of another release, else ""."""
    latest = read_json(store, f"locks/{LATEST}/{BEGIN}")
    if not latest or latest["began"] <= record["began"] or latest["parent_run"] == record["parent_run"]:
        return ""
    return str(latest["run"])


def digest(content: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(content).hexdigest()


def read_json(store: RunStore, key: str) -> dict[str, Any] | None:
    """A JSON object of the store; None if there is none."""
    content = store.read(key)
    return None if content is None else dict(json.loads(content))


def json_bytes(value: dict[str, Any]) -> bytes:
    """A JSON object as it lies in the store."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _needed(name: str, purpose: str) -> str:
    """A variable of the environment; UserError when it is not set."""
    if value := os.environ.get(name):
        return value
    raise UserError(f"{name}: not set; give {purpose}")
