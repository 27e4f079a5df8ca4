"""Reading a checkpoint that a killed run left: a truncated one is discarded."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import TypeVar

from slimtower.common.errors import line
from steps.training.distributed import rank

Loaded = TypeVar("Loaded")


def is_cut(error: Exception) -> bool:
    """Whether what torch raised is of the file's contents: of some cut ones it is EINVAL, all else is the system's."""
    return not isinstance(error, OSError) or error.errno == errno.EINVAL


def load_checkpoint_or_none(path: Path, load: Callable[[Path], Loaded], stage: str) -> Loaded | None:
    """What `load` makes of a file; None without one.

    None too where it cannot be read, as a power failure may leave it: a line of the stage's says so, and rank 0 removes
    it.
    """
    try:
        return load(path)
    except FileNotFoundError:
        return None
    except (RuntimeError, EOFError, OSError, ValueError, UnpicklingError) as error:
        if not is_cut(error):
            raise
        if rank() == 0:
            print(f"{stage}: {path} cannot be read ({line(error)[:80]}); begins anew", file=sys.stderr)
            path.unlink(missing_ok=True)
        return None
