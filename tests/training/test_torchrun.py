"""What ends a training in several processes, and the settings that start one."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slimtower.common.errors import OutOfMemory, TransientError, UserError
from slimtower.common.files import write_json
from slimtower.common.settings import load_section
from steps.frame.exit_file import VARIABLE, read_exit
from steps.teach.kinds.base import Teacher
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.kinds.endpoint import Endpoint
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.kinds.llm_dual_encoder import LlmDualEncoder
from steps.teach.params import TeachParams
from steps.tracking.runs import NullRun
from steps.training import torchrun
from steps.training.torchrun import _launch, _meeting_point, _number, _Stage, explain, shared_stage_main

ROOT = Path(__file__).parents[2]


def leave(folder: Path, rank: int, code: int, message: str, time: int) -> None:
    write_json(folder / f"{rank}.json", {"rank": str(rank), "code": code, "message": message, "time": time})


@pytest.mark.parametrize(("code", "kind"), [(3, UserError), (75, TransientError), (137, OutOfMemory)])
def test_a_reason_that_can_be_fixed_is_what_happened(tmp_path: Path, code: int, kind: type[UserError]) -> None:
    leave(tmp_path, 0, 1, "Traceback: connection closed by peer", 1)
    leave(tmp_path, 1, code, "ingest: too bad", 2)
    with pytest.raises(UserError, match=r"^ingest: too bad$") as raised:
        explain(tmp_path, {0: 1, 1: code})
    assert type(raised.value) is kind


def test_a_killed_rank_counts_before_the_errors_that_it_caused(tmp_path: Path) -> None:
    leave(tmp_path, 0, 1, "Traceback: connection closed by peer", 1)
    with pytest.raises(OutOfMemory, match="process 1 of the training was killed"):
        explain(tmp_path, {0: 1, 1: -signal.SIGKILL})
    assert explain(tmp_path, {0: 1, 1: -signal.SIGSEGV}) == 128 + signal.SIGSEGV


def test_of_tracebacks_the_earliest_is_shown_and_what_rank_0_said_not_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, {0: 75, 1: -signal.SIGTERM}) == 75 and not capsys.readouterr().err
    leave(tmp_path, 0, 1, "Traceback: connection closed by peer", 9)
    leave(tmp_path, 1, 1, "Traceback: a bug", 5)
    assert explain(tmp_path, {0: 1, 1: 1}) == 1
    assert capsys.readouterr().err == "process 1 of the training failed:\nTraceback: a bug\n"


@pytest.mark.parametrize(
    ("left", "code", "recorded"),
    [
        ((137, "killed, most likely for the memory it took"), 1, (1, "exited with 1")),  # a defect of another rank
        ((143, "exited with 143"), 1, (1, "exited with 1")),
        ((75, "the server is away"), 75, (75, "the server is away")),  # rank 0 said so itself
        ((0, ""), 0, (0, "")),
    ],
)
def test_the_launcher_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[int, str], code: int, recorded: tuple[int, str]
) -> None:
    write_json(tmp_path / "exit", {"code": left[0], "line": left[1]})
    monkeypatch.setenv(VARIABLE, str(tmp_path / "exit"))
    assert launched(monkeypatch, lambda *_: code) == code
    assert read_exit(tmp_path / "exit") == recorded


def launched(monkeypatch: pytest.MonkeyPatch, ranks: Callable[..., int]) -> object:
    """The exit code of a stage in two processes that end so."""
    monkeypatch.setenv("SLIMTOWER_PROCESSES", "2")
    monkeypatch.setattr(torchrun, "_run_ranks", ranks)
    with pytest.raises((SystemExit, OutOfMemory)) as ended:
        _launch(_Stage("teach", TeachParams, lambda params, run: None, None))
    return getattr(ended.value, "code", ended.type)


def test_a_killed_rank_is_recorded_as_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "exit", {"code": 143, "line": "exited with 143"})
    monkeypatch.setenv(VARIABLE, str(tmp_path / "exit"))
    assert launched(monkeypatch, lambda *_: explain(tmp_path / "none", {1: -signal.SIGKILL})) is OutOfMemory
    assert (read_exit(tmp_path / "exit") or (0, ""))[0] == 137


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "SLIMTOWER_RDZV is ''; give host:port"),
        ({"SLIMTOWER_RDZV": "host"}, "SLIMTOWER_RDZV is 'host'; give host:port"),
        ({"SLIMTOWER_RDZV": "host:29500"}, "SLIMTOWER_HOST_RANK is ''"),
        ({"SLIMTOWER_RDZV": "host:29500", "SLIMTOWER_HOST_RANK": "2"}, "it is 0 to 1"),
    ],
)
def test_hosts_need_a_meeting_point_and_numbers(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], complaint: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=complaint):
        _meeting_point(2)
    assert _meeting_point(1)["rdzv_endpoint"] == "localhost:0"


def test_a_number_of_processes_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _number("SLIMTOWER_PROCESSES") == 1
    for given in ("0", "two", "-1"):
        monkeypatch.setenv("SLIMTOWER_PROCESSES", given)
        with pytest.raises(UserError, match=f"SLIMTOWER_PROCESSES is '{given}'; give a whole number from 1"):
            _number("SLIMTOWER_PROCESSES")


def alone(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> list[str]:
    """What a stage does that several processes cannot share."""
    done: list[str] = []
    monkeypatch.setattr(torchrun, "stage_main", lambda stage, model, body, cell: done.append("stage"))
    monkeypatch.setattr(torchrun, "_run_ranks", lambda *given: done.append("ranks"))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    shared_stage_main("teach", TeachParams, lambda params, run: None, "x", lambda params: False)
    return done


@pytest.mark.medium
def test_what_cannot_be_shared_runs_in_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert alone(monkeypatch, {"SLIMTOWER_PROCESSES": "2"}) == ["stage"]
    assert capsys.readouterr().err == "teach: one process does this; no other is started\n"
    assert alone(monkeypatch, {"SLIMTOWER_HOSTS": "2", "SLIMTOWER_HOST_RANK": "0"}) == ["stage"]
    with pytest.raises(SystemExit) as ended:
        alone(monkeypatch, {"SLIMTOWER_HOST_RANK": "1"})
    assert ended.value.code == 0 and "on host 0; no other is started" in capsys.readouterr().err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_cannot_be_shared_does_nothing_under_a_torchrun_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    def now(stage: str, model: type[TeachParams], body: Callable[..., None], cell: str) -> None:
        body(load_section(stage, model), NullRun())

    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for name in ("end_with_parent", "_leave_reason"):
        monkeypatch.setattr(torchrun, name, lambda *given: None)
    monkeypatch.setattr(torchrun, "guarded", lambda main: main())
    monkeypatch.setattr(torchrun, "stage_main", now)
    with pytest.raises(UserError, match="teach: one process does this; start it without torchrun or accelerate"):
        shared_stage_main("teach", TeachParams, lambda params, run: None, "x", lambda params: False)


@pytest.mark.parametrize(
    ("kind", "shared"),
    [(DualEncoder, True), (LlmDualEncoder, True), (CrossEncoder, False), (LateInteraction, False), (Endpoint, False)],
)
def test_only_what_sums_gradients_over_processes_is_shared(kind: type[Teacher], shared: bool) -> None:
    assert kind.trains_in_processes == shared


@pytest.mark.slow
def test_a_failing_rank_ends_the_command_with_its_line_and_code(tmp_path: Path) -> None:
    """Rank 1 refuses while rank 0 waits for it; the command's own launcher tells."""
    script = (
        "import sys, torch\n"
        "from steps.training import distributed, torchrun\n"
        "from slimtower.common.errors import UserError\n"
        "from slimtower.common.settings import Strict\n"
        "torchrun.stage_main = lambda stage, model, body, cell: body(None, None)\n"
        "def body(params, run):\n"
        "    if distributed.rank() == 1:\n"
        "        raise UserError('data/x: is broken; fix it')\n"
        "    distributed.gather(torch.zeros(1))\n"
        "if __name__ == '__main__':\n"
        "    torchrun.shared_stage_main('fake', Strict, body)\n"
    )
    (tmp_path / "steps/fake").mkdir(parents=True)
    (tmp_path / "steps/fake/__main__.py").write_text(script)
    for name in ("steps/__init__.py", "steps/fake/__init__.py", "steps/fake/run.py"):
        (tmp_path / name).touch()
    (tmp_path / "params.yaml").write_text("fake: {}\n")
    (tmp_path / "slimtower").symlink_to(ROOT / "slimtower")
    for package in ("core", "frame", "tracking", "training"):
        (tmp_path / "steps" / package).symlink_to(ROOT / "steps" / package)
    environment = os.environ | {
        "SLIMTOWER_PROCESSES": "2",
        "SLIMTOWER_EXIT_FILE": str(tmp_path / "exit.json"),
        "PYTHONPATH": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "steps.fake"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "slimtower: data/x: is broken; fix it"
    assert "Traceback" not in done.stderr
    assert '"code": 3' in (tmp_path / "exit.json").read_text()
