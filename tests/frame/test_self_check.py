"""A step's self-check: imports all, opens nothing, and a required GPU that is missing ends with exit code 3."""

import runpy
import sys
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import torch

from slimtower.common.errors import UserError
from steps.frame import self_check as module
from steps.frame.exit_file import VARIABLE, read_exit
from steps.frame.self_check import cuda, self_check
from steps.frame.stage import stage_main
from steps.teach.params import TeachParams

pytestmark = pytest.mark.medium

STEPS = sorted(path.parent.name for path in Path("steps").glob("*/__main__.py") if path.parent.name != "search")
DISTRIBUTIONS = cache(packages_distributions)  # takes seconds


@pytest.mark.parametrize("step", STEPS)
def test_the_command_prints_one_line_and_opens_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "packages_distributions", DISTRIBUTIONS)
    monkeypatch.setattr(sys, "argv", [step, "--self-check"])  # and not --student, which distill requires
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"steps.{step}", run_name="__main__")
    assert not ended.value.code
    output = capsys.readouterr().out
    assert output.startswith(f"{step}: ready; python 3.") and output.count("\n") == 1
    assert f"torch {version('torch')}" in output and f"CUDA: {cuda()}" in output
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "steps.mine.report", None)
    with pytest.raises(UserError, match=r"steps\.mine cannot run here: .*steps\.mine\.report"):
        self_check("mine")


def test_a_missing_gpu_stops_a_stage_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("SLIMTOWER_REQUIRE_CUDA", "1")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "exit"))
    monkeypatch.setattr(sys, "argv", ["teach"])
    with pytest.raises(SystemExit) as ended:
        stage_main("teach", TeachParams, lambda params, run: pytest.fail("the stage ran"))
    message = capsys.readouterr().err
    assert ended.value.code == 3
    assert message.startswith("slimtower: SLIMTOWER_REQUIRE_CUDA is 1, but torch") and message.count("\n") == 1
    recorded = read_exit(tmp_path / "exit")
    assert recorded and recorded[0] == 3
    with pytest.raises(UserError, match="sees no CUDA device"):
        self_check("teach")
