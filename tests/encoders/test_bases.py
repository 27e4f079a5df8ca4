"""Weights by name: what is fetched from the hub is one commit's, and holds no pickle and no code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from slimtower.common.errors import UserError
from slimtower.common.files import folder_digest, write_json
from steps.encoders import bases
from steps.encoders.bases import bundled_folder, resolve_base
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.faults("security")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the hub is asked for; it has every model."""
    seen: list[Any] = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        seen.append((name, revision, allow_patterns))
        return str(tmp_path / (revision or COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    bases._fetch.cache_clear()
    return seen


def test_a_pinned_name_is_fetched_at_its_commit(downloads: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert Path(resolve_base(f"owner/model@{COMMIT}")).name == COMMIT
    ((name, revision, files),) = downloads
    assert (name, revision) == ("owner/model", COMMIT) and "*.safetensors" in files
    assert not any(suffix in pattern for pattern in files for suffix in (".bin", ".pt", ".pkl", ".py", ".h5", "*.*"))
    assert capsys.readouterr().err == ""


def test_an_unpinned_name_is_said_with_the_commit_to_write_and_no_scheduled_run_takes_it(
    downloads: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_base("owner/model")
    resolve_base("owner/model")
    assert capsys.readouterr().err.count(f"write owner/model@{COMMIT}") == len(downloads) == 1
    monkeypatch.setenv("SLIMTOWER_RUN", "scheduled")
    bases._fetch.cache_clear()
    with pytest.raises(UserError, match="not pinned"):
        resolve_base("owner/model")
    assert len(downloads) == 1, "nothing is downloaded for it"
    assert Path(resolve_base(f"owner/model@{COMMIT}")).name == COMMIT


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:39], COMMIT.upper(), f"{COMMIT}/..", "../x"])
def test_what_may_move_is_no_pin(downloads: list[Any], revision: str) -> None:
    with pytest.raises(UserError, match="is no commit"):
        resolve_base(f"owner/model@{revision}")
    assert downloads == []


def test_folders_and_bundled_models_need_no_hub(downloads: list[Any], tmp_path: Path) -> None:
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert resolve_base(str(tmp_path / "owner" / "model")) == str(tmp_path / "owner" / "model")
    assert resolve_base("all-MiniLM-L6-v2") == bundled_folder("all-MiniLM-L6-v2") != "all-MiniLM-L6-v2"
    assert resolve_base("/no/such/folder") == "/no/such/folder" and downloads == []


def test_a_model_that_cannot_be_fetched_is_one_line_and_another_try_does_not_help_without_the_hub_by_choice() -> None:
    bases._fetch.cache_clear()
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    with pytest.raises(UserError, match="model owner/no-such: cannot be loaded") as caught:
        resolve_base(f"owner/no-such@{COMMIT}")
    assert type(caught.value) is UserError


@pytest.mark.medium
def test_weights_that_are_a_pointer_or_cut_are_one_line(tiny_tower: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tower"
    shutil.copytree(tiny_tower, folder)
    [weights] = folder.glob("*.safetensors")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    for content, message in ((weights.read_bytes()[:-9], "tower: cannot be loaded"), (pointer, "git lfs pull")):
        weights.write_bytes(content)
        with pytest.raises(UserError, match=message):
            load_tower(folder)


HUB = """\
import os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.path.split("/status-")[1][:3]
        if wanted != "cut":
            self.send_response(int(wanted))
            self.send_header("Content-Length", "0")
            self.end_headers()
    do_HEAD = do_GET
    def log_message(self, *_): pass

hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=hub.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{hub.server_address[1]}"
from steps.encoders.bases import resolve_base
from slimtower.common.errors import UserError
from slimtower.common.files import folder_digest, write_json
from steps.encoders.towers import load_tower
time.sleep = lambda _: None  # between the hub's own tries

def tell(name):
    for load in (lambda: resolve_base(f"{name}@{'0' * 40}"), lambda: load_tower(name)):
        try:
            load()
        except UserError as error:
            print("TOLD", name, type(error).__name__, error)

for status in sys.argv[1:]:
    tell(f"owner/status-{status}")
hub.shutdown()
hub.server_close()
tell("owner/closed")
"""


@pytest.mark.slow
def test_a_hub_that_is_away_or_busy_may_be_tried_again(tmp_path: Path) -> None:
    away, refused = ["503", "429", "cut"], ["401", "404"]
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", HUB, *away, *refused], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = [line.split(" ", 3)[1:] for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    expected = [(f"owner/status-{name}", "TransientError") for name in away for _ in range(2)]
    expected += [(f"owner/status-{name}", "UserError") for name in refused for _ in range(2)]
    expected += [("owner/closed", "TransientError")] * 2
    assert [(name, kind) for name, kind, _ in errors] == expected
    assert all(("look at the network" in message) == (kind == "TransientError") for _, kind, message in errors)
    assert all("give a" in message for *_, message in errors)


def test_a_folder_that_changed_since_the_run_began_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "own"
    (model / ".cache").mkdir(parents=True)
    (model / "weights").write_text("as it was")
    assert resolve_base(str(model)) == str(model), "no run listed it"
    write_json(Path("models.json"), {"teach": {str(model): folder_digest(model, hidden=False)}, "distill": {}})
    monkeypatch.setenv(bases.LISTED, "yes")
    (model / ".cache/lock").touch()
    assert resolve_base(str(model)) == str(model) and resolve_base(str(tmp_path / "gone")) == str(tmp_path / "gone")
    (model / "weights").write_text("trained on")
    bases._check_listed.cache_clear()  # of another process
    with pytest.raises(UserError, match=r"own: changed since this run began; run `make` again"):
        resolve_base(str(model))
    monkeypatch.delenv(bases.LISTED)
    bases._check_listed.cache_clear()
    assert resolve_base(str(model)) == str(model), "no run of `make` wrote that list"
