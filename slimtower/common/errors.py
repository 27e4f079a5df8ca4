"""Errors that a person can fix, of engines too, exit codes that schedulers read, and processes that end together."""

import ctypes
import errno
import io
import multiprocessing
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from slimtower.common.masking import mask_tracebacks, redacted

FULL_DISK = "No space left on device"
_FULL = re.compile(  # as the system says it, as torch (twice), NumPy and SQLite do
    rf"{FULL_DISK}|iostream error|PytorchStreamWriter failed writing|\d+ requested and \d+ written|disk is full"
)
_UNWRITABLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
}  # fmt: skip
_MAX_LINE = 4000  # characters of a line
EXIT_BUG = 1
EXIT_DATA = 3  # data or gate violation: failing again would not help
EXIT_TRANSIENT = 75  # a network, a server or a disk failed: trying again may help
EXIT_NOTHING = 99  # nothing to do
EXIT_KILLED = 137  # killed, or out of memory: a smaller micro-batch may help
EXIT_UNREAD = 141  # who read the output has gone (`| head`); what a shell reports for SIGPIPE
PASSING_STATUS = {408, 425, 429}  # of HTTP's refusals
_AWAY = {"ConnectionError", "TimeoutError", "TransportError", "Timeout"}  # Python's, httpx's and requests' classes
_HERE = {"OfflineModeIsEnabled", "SSLCertVerificationError", "UnsupportedProtocol"}  # settings of this machine
# psycopg's classes of what is refused; of a login that fails libpq has the server's words alone
_POSTGRES = {"ProgrammingError", "NotSupportedError", "DataError", "InvalidAuthorizationSpecification"}
_LOGIN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|FATAL: .*(?:does not exist|permission denied)"
)
_GRPC = {"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED"}
_MILVUS = {1, 7, 8, 11, 14, 16, 17}  # hundreds: collection, index, database, parameter, privilege, alias, field


class UserError(Exception):
    """What is wrong, with the value, and what to do. Ends a command with one line and exit code 3."""

    exit_code = EXIT_DATA


class TransientError(UserError):
    """What failed outside this machine, and what to look at before trying again. Exit code 75."""

    exit_code = EXIT_TRANSIENT


class OutOfMemory(UserError):
    """What did not fit into the memory of a device or of the machine. Exit code 137."""

    exit_code = EXIT_KILLED


def line(error: BaseException) -> str:
    """What an error says, on one line, without secrets; of a longer one begin and end, where what to do stands."""
    text = " ".join(redacted(str(error)).split())
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE // 2]} [...] {text[-_MAX_LINE // 2 :]}"


def exit_with(error: UserError) -> NoReturn:
    """Print the error as one line on stderr and exit with its code."""
    print(f"slimtower: {_as_typed_here(line(error))}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def _as_typed_here(advice: str) -> str:
    """The advice with the path of DVC in the project's environment, which no newcomer has on the PATH."""
    for root in (Path(), Path("../..")):  # a recipe's run lies in runs/<recipe>
        if (dvc := root / ".venv/bin/dvc").is_file():
            return advice.replace("`dvc ", f"`{dvc} ")
    return advice


def guarded(command: Callable[[], None]) -> None:
    """Run a command; a UserError becomes one line and its exit code: 3, 75 where trying again may help, or 137.

    So does what the system refuses. A command whose output nobody reads any more ends with 141 and no word. Any other
    error ends with its traceback, without secrets.
    """
    mask_tracebacks()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale that lacks a sign ends no command
    try:
        command()
        if sys.stdout:  # None where it was closed from the start
            sys.stdout.flush()
    except UserError as error:
        exit_with(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _unread():
            raise SystemExit(EXIT_UNREAD) from None
        if exhaustion := exhausted(error):
            exit_with(exhaustion)
        raise


def _unread() -> bool:
    """Whether stdout's reader has gone. If so, what is left to say goes nowhere, also what Python writes at exit."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors and hang-ups are told without being asked for
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def exhausted(error: BaseException) -> UserError | None:
    """The error of ours that lies behind an error: a full disk, exhausted memory, or a place that cannot be written."""
    for cause in _causes(error):
        text = line(cause)
        if getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _FULL.search(text):
            return TransientError(f"full disk: {text[:300]}; free some space, then run again")
        out_of_memory = isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM
        out_of_memory |= isinstance(cause, RuntimeError) and "can't allocate memory" in text  # torch's, on a CPU
        if out_of_memory or type(cause).__name__ == "OutOfMemoryError":  # torch's, for any device
            advice = "give it more, or a smaller SLIMTOWER_MICRO_BATCH or batch_size"
            return OutOfMemory(f"out of memory: {text[:300]}; {advice}")
    if isinstance(error, FileExistsError | NotADirectoryError):
        return UserError(f"{line(error)[:300]}; a file lies where a folder has to be: move it away, then run again")
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return UserError(f"{line(error)[:300]}; let this user read it, or write here and in SLIMTOWER_CACHE")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_outage(error: BaseException) -> bool:
    """Whether a server is away or busy behind an error: no connection, a time-out, HTTP 408, 425, 429 or 5xx."""
    kinds, statuses = set[str](), list[int]()
    for cause in _causes(error):
        kinds |= {kind.__name__ for kind in type(cause).__mro__}
        status = getattr(getattr(cause, "response", None), "status_code", None)
        statuses += [status] if isinstance(status, int) else []
    passing = any(status in PASSING_STATUS or status >= 500 for status in statuses)
    return not kinds & _HERE and (passing or bool(kinds & _AWAY))


def end_with_parent() -> None:
    """Let Linux kill this process when the one that started it dies, so that none works on beside its successor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before
        os.kill(os.getpid(), signal.SIGKILL)


def is_refusal(error: BaseException) -> bool:
    """Whether the engine would answer so again: a wrong login, missing rights, or what it cannot do."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    if {kind.__name__ for kind in type(error).__mro__} & _POSTGRES or _LOGIN.search(line(error)):
        return True
    if isinstance(status, int) and 400 <= status < 500 and status not in PASSING_STATUS:
        return True
    if isinstance(code, int) and not getattr(error, "retriable", False) and code // 100 in _MILVUS:
        return True
    if callable(code) and getattr(code(), "name", "") in _GRPC:
        return True
    behind = error.__context__ if error.__cause__ in (None, error) else error.__cause__  # pymilvus raises e from e
    return behind is not None and is_refusal(behind)
