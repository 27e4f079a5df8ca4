"""Errors that a person can mend, and the exit codes that schedulers read."""

import sys
from collections.abc import Callable
from typing import NoReturn

EXIT_DATA = 3  # data or gate violation: failing again would not help
EXIT_TRANSIENT = 75  # a network or a server failed: trying again may help


class UserError(Exception):
    """What is wrong, with the value, and what to do. Ends a command with one line and exit code 3."""


class TransientError(UserError):
    """What failed outside this machine, and what to look at before trying again. Exit code 75."""


def exit_with(error: UserError) -> NoReturn:
    """Print the error as one line on stderr and exit with its code, 3 or 75."""
    print(f"slimtower: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(EXIT_TRANSIENT if isinstance(error, TransientError) else EXIT_DATA)


def guarded(command: Callable[[], None]) -> None:
    """Run a command; a UserError becomes one line and exit code 3, or 75 where trying again may help."""
    try:
        command()
    except UserError as error:
        exit_with(error)
