"""Weights by name: what is fetched from the hub is one commit's, and holds no pickle and no code."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from steps.core import bases
from steps.core.bases import carried, resolve_base
from steps.core.errors import UserError

pytestmark = pytest.mark.faults("security")

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the hub is asked for; it has every model."""
    seen: list[Any] = []

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        seen.append((name, revision, allow_patterns))
        return str(tmp_path / (revision or COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    bases._fetched.cache_clear()
    return seen


def test_a_pinned_name_is_fetched_at_its_commit(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert Path(resolve_base(f"owner/model@{COMMIT}")).name == COMMIT
    ((name, revision, files),) = asked
    assert (name, revision) == ("owner/model", COMMIT) and "*.safetensors" in files
    assert not any(end in pattern for pattern in files for end in (".bin", ".pt", ".pkl", ".py", ".h5", "*.*"))
    assert capsys.readouterr().err == ""


def test_an_unpinned_name_is_said_with_the_commit_to_write(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    resolve_base("owner/model")
    resolve_base("owner/model")
    assert capsys.readouterr().err.count(f"not pinned, another run may get another; write owner/model@{COMMIT}") == 1
    assert len(asked) == 1


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:39], COMMIT.upper(), f"{COMMIT}/..", "../x"])
def test_what_may_move_is_no_pin(asked: list[Any], revision: str) -> None:
    with pytest.raises(UserError, match="is no commit"):
        resolve_base(f"owner/model@{revision}")
    assert asked == []


def test_folders_and_bundled_models_need_no_hub(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert resolve_base(str(tmp_path / "owner" / "model")) == str(tmp_path / "owner" / "model")
    assert resolve_base("all-MiniLM-L6-v2") == carried("all-MiniLM-L6-v2") != "all-MiniLM-L6-v2"
    assert resolve_base("/no/such/folder") == "/no/such/folder" and asked == []


def test_a_model_that_cannot_be_fetched_is_one_line() -> None:
    bases._fetched.cache_clear()
    with pytest.raises(UserError, match=r"model owner/no-such: cannot be loaded"):
        resolve_base(f"owner/no-such@{COMMIT}")
