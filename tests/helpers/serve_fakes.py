"""What tests of the service share: settings, a client, and a source that is told what to serve."""

import shutil
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from slimtower.common.errors import UserError
from slimtower.service.app import build_app
from slimtower.service.service import Service, open_service
from slimtower.service.settings import Settings
from slimtower.service.systems import Origin, Served
from slimtower.serving.release import load_release

SETTINGS: dict[str, Any] = {
    "release": "", "model": "", "system": "", "embeddings_model": "text-embedding-x", "poll_s": 0.2, "threads": 2,
    "workers": 1, "max_body": 5000,
    "max_batch": 4, "max_text": 200, "max_k": 20, "rate": 0.0, "max_requests": 100, "corpus": "", "corpus_mb": 10,
    "baselines": False, "log": "", "log_queries": False, "log_flush_s": 3600.0, "consent": "header",
    "retention_days": 30, "salt": "salt",
}  # fmt: skip
CONSENT = {"X-Search-Consent": "yes", "X-Search-Client": "someone"}


def settings(release: Path, **changes: Any) -> Settings:
    """Those of a service on a folder, with some changed."""
    return Settings.model_validate(SETTINGS | {"release": str(release)} | changes)


def open_client(release: Path, **changes: Any) -> tuple[TestClient, Service]:
    """A client of a service on a folder, and the service; to be entered."""
    service = open_service(settings(release, **changes))
    return TestClient(build_app(service), raise_server_exceptions=False), service


def refusal(response: Any) -> str:
    """The one line of a refusal."""
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert "\n" not in error["message"]
    assert "/tmp" not in error["message"] and str(Path.cwd()) not in error["message"]
    return str(error["message"])


def replace(target: Path, source: Path) -> None:
    """Put another release in a folder's place, by rename."""
    staging = Path(shutil.copytree(source, target.with_name(f".staging.{target.name}")))
    old = target.rename(target.with_name(f".old.{target.name}"))
    staging.rename(target)
    shutil.rmtree(old)


class ToldSource:
    """Serves folders by name; a key of None cannot be polled."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self.unreachable = ""

    def poll(self) -> dict[str, Hashable]:
        if self.unreachable:
            raise RuntimeError(self.unreachable)
        return dict(self.folders)

    def load(self, name: str, key: Hashable) -> Served:
        folder = self.folders[name]
        if not folder.is_dir():
            raise UserError(f"{folder}: no release here")
        return Served(name, load_release(folder), Origin(source=str(folder)), "2026-01-01T00:00:00Z")

    def default(self, names: list[str]) -> str:
        return names[0]
