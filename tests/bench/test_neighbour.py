"""Work is timed alone and beside a process that is busy, and what takes too long is refused."""

import sys
import time
from pathlib import Path

import pytest

from bench import neighbour
from slimtower.common.errors import UserError
from slimtower.common.files import read_json


def test_neighbours_compute_while_the_work_is_done_and_no_longer() -> None:
    with neighbour.busy(2):
        last, started = time.monotonic() + 20, list[Path]()
        while len(started) < 2:  # a process has its command line once it is its own program
            assert time.monotonic() < last
            started = [process for process in Path("/proc").glob("[0-9]*/cmdline") if _is_busy(process)]
    assert not [process for process in started if _is_busy(process)]


def _is_busy(process: Path) -> bool:
    try:
        return process.read_bytes().split(b"\0")[1:3] == [b"-c", b"while True: pass"]
    except OSError:
        return False


@pytest.mark.parametrize("times", [2.0, 2.5])
def test_what_takes_too_long_is_refused_after_it_is_recorded(
    times: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbour, "RESULT", tmp_path / "neighbour.json")
    monkeypatch.setattr(neighbour, "seconds", lambda work, run, neighbours: 3.0 * times if neighbours else 3.0)
    monkeypatch.setattr(sys, "argv", ["bench.neighbour"])
    if times > neighbour.MOST:
        with pytest.raises(UserError, match=r"training, embedding takes more than 2\.2 times"):
            neighbour.main()
    else:
        neighbour.main()
    record = read_json(tmp_path / "neighbour.json")
    assert record["training"] == {
        "alone_seconds": 3.0, "beside_seconds": 3.0 * times, "times": times, "rounds": [[3.0, 3.0 * times]] * 2,
    }  # fmt: skip
