"""A stage's frame: what params.yaml or the code say when it ends is what it was made of."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from steps.core import stage as module
from steps.core.params import Strict
from steps.core.stage import stage_main


class Knobs(Strict):
    depth: int
    students: list[str]
    student: dict[str, dict[str, int]]


KNOBS = {"depth": 3, "students": ["1l", "2l"], "student": {"1l": {"layers": 1}, "2l": {"layers": 2}}}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The code's digest, the last one given; a stage runs in a folder with params.yaml alone."""
    digests = ["old"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setattr(module, "code_digest", lambda *modules: digests[-1])
    monkeypatch.setattr(module, "stage_run", lambda *_: pytest.MonkeyPatch.context())
    monkeypatch.setattr(module, "step_parser", lambda *_: Parser())
    return digests


class Parser:
    def parse_known_args(self) -> None: ...


def write(knobs: dict[str, object]) -> None:
    Path("params.yaml").write_text(yaml.safe_dump({"distill": knobs}))


def ends(edit: Callable[[], object]) -> int:
    """The exit code of a cell during which something is edited."""
    write(KNOBS)
    try:
        stage_main("distill", Knobs, lambda params, run: edit() and None, "2l")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({}, False),
        ({"student": {"1l": {"layers": 4}, "2l": {"layers": 2}}, "students": ["2l"]}, False),  # of other cells
        ({"student": {"2l": {"layers": 3}}}, True),
        ({"depth": 4}, True),
    ],
)
def test_what_is_edited_meanwhile_is_not_recorded_with_what_was_made_before(
    code: list[str], changed: dict[str, object], fails: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(lambda: write(KNOBS | changed)) == (3 if fails else 0)
    assert ("params.yaml changed while it ran" in capsys.readouterr().err) == fails


def test_code_that_changes_meanwhile_is_told(code: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(lambda: code.append("new")) == 3
    assert "distill@2l: the code changed while it ran" in capsys.readouterr().err
