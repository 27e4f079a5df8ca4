"""What ends a training in several processes, and the settings that start one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slimtower.common.errors import OutOfMemory, TransientError, UserError
from slimtower.common.files import write_json
from steps.frame.exit_file import VARIABLE, read_exit
from steps.teach.params import TeachParams
from steps.training import torchrun
from steps.training.torchrun import SharedStage, _launch, _meeting_point, explain

ROOT = Path(__file__).parents[2]


def leave(folder: Path, rank: int, code: int, message: str, time: int) -> None:
    write_json(folder / f"{rank}.json", {"rank": str(rank), "code": code, "message": message, "time": time})


@pytest.mark.parametrize(
    ("code", "kind"), [(3, UserError), (75, TransientError), (137, OutOfMemory), (-signal.SIGKILL, OutOfMemory)]
)
def test_a_reason_that_can_be_fixed_or_a_kill_counts_before_what_it_caused(
    tmp_path: Path, code: int, kind: type[UserError]
) -> None:
    leave(tmp_path, 0, 1, "Traceback: connection closed by peer", 1)
    if code > 0:
        leave(tmp_path, 1, code, "ingest: too bad", 2)
    with pytest.raises(UserError, match=r"^ingest: too bad$" if code > 0 else "process 1 .* killed") as raised:
        explain(tmp_path, {0: 1, 1: code})
    assert type(raised.value) is kind


def test_of_tracebacks_the_earliest_is_shown_and_what_rank_0_said_not_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(tmp_path, {0: 75, 1: -signal.SIGTERM}) == 75 and not capsys.readouterr().err
    leave(tmp_path, 0, 1, "Traceback: connection closed by peer", 9)
    leave(tmp_path, 1, 1, "Traceback: a bug", 5)
    assert explain(tmp_path, {0: 1, 1: 1}) == 1
    assert capsys.readouterr().err == "process 1 of the training failed:\nTraceback: a bug\n"
    assert explain(tmp_path, {0: 1, 1: -signal.SIGSEGV}) == 128 + signal.SIGSEGV


@pytest.mark.parametrize(
    ("rank_exit", "code", "recorded"),
    [
        ((137, "killed, most likely for the memory it took"), 1, (1, "exited with 1")),  # a defect of another rank
        ((75, "the server is away"), 75, (75, "the server is away")),  # rank 0 said so itself
        ((0, ""), 0, (0, "")),
        ((143, "exited with 143"), -signal.SIGKILL, (137, "process 1 of the training was killed")),
    ],
)
def test_the_launcher_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank_exit: tuple[int, str], code: int, recorded: tuple[int, str]
) -> None:
    write_json(tmp_path / "exit", {"code": rank_exit[0], "line": rank_exit[1]})
    monkeypatch.setenv(VARIABLE, str(tmp_path / "exit"))
    monkeypatch.setenv("SLIMTOWER_PROCESSES", "2")
    monkeypatch.setattr(torchrun, "_run_ranks", lambda *_: explain(tmp_path / "none", {1: code}) if code else 0)
    with pytest.raises((SystemExit, OutOfMemory)):
        _launch(SharedStage("teach", TeachParams, lambda params, run: None))
    last_exit = read_exit(tmp_path / "exit")
    assert last_exit is not None and last_exit[0] == recorded[0] and last_exit[1].startswith(recorded[1])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "SLIMTOWER_RDZV is ''"),
        ({"SLIMTOWER_RDZV": "host"}, "SLIMTOWER_RDZV is 'host'"),
        ({"SLIMTOWER_RDZV": "host:29500"}, "SLIMTOWER_HOST_RANK is ''"),
        ({"SLIMTOWER_RDZV": "host:29500", "SLIMTOWER_HOST_RANK": "-1"}, "SLIMTOWER_HOST_RANK is '-1'"),
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


@pytest.mark.medium
def test_what_cannot_be_shared_runs_in_one_process_and_not_under_a_torchrun_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def run() -> None:
        SharedStage("teach", TeachParams, lambda params, run: None, "x", lambda params: False).main()

    monkeypatch.setattr(torchrun, "stage_main", lambda stage, model, body, cell: done.append("stage"))
    monkeypatch.setattr(torchrun, "_run_ranks", lambda *arguments: done.append("ranks"))
    monkeypatch.setenv("SLIMTOWER_PROCESSES", "2")
    run()
    assert done == ["stage"] and "one process does this" in capsys.readouterr().err
    monkeypatch.setenv("SLIMTOWER_HOSTS", "2")
    monkeypatch.setenv("SLIMTOWER_HOST_RANK", "0")
    run()
    monkeypatch.setenv("SLIMTOWER_HOST_RANK", "1")
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 0 and done == ["stage", "stage"]
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for name in ("end_with_parent", "_leave_reason"):
        monkeypatch.setattr(torchrun, name, lambda *arguments: None)
    monkeypatch.setattr(torchrun, "guarded", lambda main: main())
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)  # a handler would stay in this process
    with pytest.raises(UserError, match="one process does this; start it without torchrun"):
        run()


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
        "    torchrun.SharedStage('fake', Strict, body).main()\n"
    )
    (tmp_path / "steps/fake").mkdir(parents=True)
    (tmp_path / "steps/fake/__main__.py").write_text(script)
    for name in ("steps/__init__.py", "steps/fake/__init__.py", "steps/fake/run.py"):
        (tmp_path / name).touch()
    (tmp_path / "params.yaml").write_text("fake: {}\n")
    (tmp_path / "slimtower").symlink_to(ROOT / "slimtower")
    for package in ("core", "encoders", "frame", "tracking", "training"):
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
