"""A registry on sqlite with releases that need no models, and ways to cut a promotion short."""

import json
import uuid
from pathlib import Path

import pytest
from promote_fakes import evidence, promote_params

from slimtower.common.files import folder_digest
from steps.promote import promotion
from steps.promote.evidence import Candidate
from steps.promote.lock import Lock, lock_store
from steps.promote.move import history
from steps.promote.promotion import Origin, Outcome, promote, roll_back
from steps.promote.registry import Registry

SWAP = ["intent", "previous", "champion", "event", "audit", "intent removed", "unlocked"]


class KilledError(BaseException):
    """Stands for a process that ends between two steps; nothing catches it."""


def killed_after(step: str):
    def after(done: str) -> None:
        if done == step:
            raise KilledError(step)

    return after


class Project:
    """A registry with releases A, B, C ... that need no models: loading and serving them is not what is tested here."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.registry = root, Registry(name)
        self.registry.ensure({})

    def candidate(self, name: str, quality: float) -> Candidate:
        folder = self.root / "releases" / name
        (folder / "query_encoder").mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"name": name, "of": self.registry.name}))
        return Candidate(name, folder, evidence([quality] * 8, release=folder_digest(folder)), f"# {name}")

    def promote(self, name: str, quality: float = 0.5, after=lambda step: None, again: bool = False) -> Outcome:
        origin = Origin({"student": name, "git_commit": "c0ffee"}, [], None)
        request = (self.registry, self.lock(), self.candidate(name, quality), origin, [], promote_params())
        return promote(*request, again=again, after=after)

    def two(self) -> None:
        """A, and B, which is better."""
        self.promote("A")
        self.promote("B", 0.6)

    def three(self) -> None:
        """Those, and C, which is better still."""
        self.two()
        self.promote("C", 0.7)

    def lock(self) -> Lock:
        return Lock(lock_store(self.registry), self.registry.name, 2.0, 60.0)

    def roll_back(self, after=lambda step: None) -> str:
        return roll_back(self.registry, self.lock(), after)[0].version

    @property
    def aliases(self) -> dict[str, str]:
        return self.registry.aliases()

    def names(self) -> dict[str, str]:
        """Alias -> name of the release."""
        return {alias: self.registry.tags(version)["student"] for alias, version in self.aliases.items()}

    def actions(self) -> list[str]:
        return [f"{row[1]} {row[2]}" for row in history(self.registry)]


def open_project(root: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A registered model of its own in the database; smoke tests pass, and stored folders need not be releases."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    monkeypatch.setenv("SLIMTOWER_OPERATOR", "tester")
    monkeypatch.delenv("SLIMTOWER_LOCK", raising=False)
    golden = [{"dataset": "api", "text": "a", "doc_ids": ["d"], "scores": [1.0]}]
    monkeypatch.setattr(promotion, "golden_hits", lambda folder, count: golden)
    monkeypatch.setattr(promotion, "log_release", lambda run, folder, name: run.model(folder, name))
    monkeypatch.setattr(promotion, "smoke_test", lambda registry, version: None)
    return Project(root, f"retriever-{uuid.uuid4().hex[:8]}")
