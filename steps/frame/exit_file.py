"""How a stage tells the task around it how it ended: `dvc repro` returns 255 whatever its stage returned.

SLIMTOWER_EXIT_FILE names the file, which holds {"code", "line"}. From the start it says "killed", and it is as long
then as it will ever be, so that the end can be written over it on a full disk.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slimtower.common.errors import EXIT_BUG, EXIT_KILLED, UserError, exhausted, line
from slimtower.common.masking import redacted

VARIABLE = "SLIMTOWER_EXIT_FILE"
_LENGTH = 8192  # bytes


@contextmanager
def record_exit() -> Iterator[None]:
    """Record how the block ends, if a file is named; what the system refuses becomes a UserError."""
    _write(EXIT_KILLED, "killed, most likely for the memory it took")
    try:
        yield
    except UserError as error:
        _write(error.exit_code, line(error))
        raise
    except SystemExit as error:
        _write(
            error.code if isinstance(error.code, int) else int(error.code is not None),
            redacted(f"exited with {error.code}"),
        )
        raise
    except Exception as error:
        user_error = exhausted(error)
        _write(user_error.exit_code if user_error else EXIT_BUG, line(user_error or error) or type(error).__name__)
        if user_error is None:
            raise
        raise user_error from error
    _write(0, "")


def _write(code: int, text: str) -> None:
    """Overwrite the file in place; what cannot be written must not hide how the stage ended."""
    if not (path := os.environ.get(VARIABLE)):
        return
    cut = text[: _LENGTH // 12 - 8]  # JSON writes a character in up to twelve bytes
    content = json.dumps({"code": code, "line": cut}).ljust(_LENGTH).encode()
    with contextlib.suppress(OSError), Path(path).open("r+b" if Path(path).exists() else "wb") as handle:
        handle.write(content)


def read_exit(path: Path) -> tuple[int, str] | None:
    """The code and line that the last stage recorded; None when no stage started."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return int(record["code"]), str(record["line"])
