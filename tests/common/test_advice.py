"""What a person is advised to type can be typed: DVC is in the project's environment, not on the PATH."""

from pathlib import Path

import pytest

from slimtower.common.errors import UserError, guarded


@pytest.mark.parametrize(
    ("place", "environment", "typed"),
    [(".", ".venv", ".venv/bin/dvc"), ("runs/ubi", ".venv", "../../.venv/bin/dvc"), (".", "elsewhere", "dvc")],
)
def test_dvc_is_named_by_its_path(
    place: str, environment: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / environment / "bin").mkdir(parents=True)
    (tmp_path / environment / "bin/dvc").touch()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / place)

    def command() -> None:
        raise UserError("data/embed: of another teacher; run `dvc repro embed` again")

    with pytest.raises(SystemExit):
        guarded(command)
    assert f"run `{typed} repro embed` again" in capsys.readouterr().err
