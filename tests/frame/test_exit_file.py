"""How a stage ends reaches the task around it, whatever ends it."""

import errno
import json
from pathlib import Path

import pytest

from slimtower.common.errors import OutOfMemory, TransientError, UserError, guarded, line
from steps.frame.exit_file import VARIABLE, read_exit, record_exit


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "exit"))
    return tmp_path / "exit"


def from_pyarrow() -> None:
    raise RuntimeError("could not save") from OSError("[Errno 28] Error writing bytes. Detail: No space left on device")


def from_torch() -> None:
    raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2.00 GiB")


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("body", "kind", "code", "words"),
    [
        (lambda: fail(UserError("params.yaml: wrong;\n fix it")), UserError, 3, "params.yaml: wrong; fix it"),
        (lambda: fail(TransientError("away")), TransientError, 75, "away"),
        (lambda: fail(OSError(errno.ENOSPC, "full", "x")), TransientError, 75, "full disk: [Errno 28] full: 'x'"),
        (from_pyarrow, TransientError, 75, "full disk: [Errno 28] Error writing bytes."),
        (from_torch, OutOfMemory, 137, "out of memory: CUDA out of memory."),
        (lambda: fail(MemoryError()), OutOfMemory, 137, "out of memory"),
        (lambda: fail(ZeroDivisionError("division by zero")), ZeroDivisionError, 1, "division by zero"),
        (lambda: fail(AssertionError()), AssertionError, 1, "AssertionError"),
        (lambda: fail(SystemExit(75)), SystemExit, 75, "exited with 75"),
        (lambda: fail(SystemExit("no")), SystemExit, 1, "exited with no"),
        (lambda: fail(SystemExit(None)), SystemExit, 0, ""),
        (lambda: None, None, 0, ""),
    ],
)
def test_an_end_is_recorded(file: Path, body, kind, code: int, words: str) -> None:
    if kind is None:
        with record_exit():
            body()
    else:
        with pytest.raises(kind) as caught, record_exit():
            body()
        assert type(caught.value) is kind
    record = read_exit(file)
    assert record is not None and record[0] == code and words in record[1]


def test_until_the_end_it_says_killed(file: Path) -> None:
    assert read_exit(file) is None
    with record_exit():
        assert read_exit(file) == (137, "killed, most likely for the memory it took")


def test_the_end_takes_no_more_room_than_the_start(file: Path) -> None:
    with record_exit():
        length = file.stat().st_size
    assert file.stat().st_size == length
    for text in ("long " * 5000, '"' * 9999, "\x00\u20ac\U0001f600" * 3000):
        with pytest.raises(UserError), record_exit():
            raise UserError(text)
        assert file.stat().st_size == length
        assert json.loads(file.read_bytes())["code"] == 3


def test_without_a_file_a_full_disk_still_ends_with_its_line_and_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    def command() -> None:
        with record_exit(), Path("/dev/full").open("w") as handle:
            handle.write("x")

    with pytest.raises(SystemExit) as ended:
        guarded(command)
    assert ended.value.code == 75
    assert capsys.readouterr().err == (
        "slimtower: full disk: [Errno 28] No space left on device; free some space, then run again\n"
    )


def test_what_the_system_refuses_is_for_a_person_to_mend(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):

        @record_exit()
        def command(number: int = number) -> None:
            raise OSError(number, "no", "data/ingest")

        with pytest.raises(SystemExit) as ended:
            guarded(command)
        message = capsys.readouterr().err
        assert ended.value.code == 3 and message.startswith("slimtower: ") and "data/ingest" in message
        assert message.count("\n") == 1 and read_exit(file) == (3, message.removeprefix("slimtower: ").rstrip())


def test_a_line_of_any_length_keeps_begin_and_end() -> None:
    message = line(UserError("begin " + "x" * 100_000 + " fix it"))
    assert message.startswith("begin x") and message.endswith("x fix it") and len(message) < 5000
