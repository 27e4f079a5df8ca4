"""Arrays that are written where they lie, in a file."""

import errno
import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

_UNKNOWN = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}  # of file systems that take no room beforehand


def new_array(target: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.memmap:
    """A `.npy` of zeros to be written piece by piece; OSError where the disk has no room for it.

    The room is taken at once. Without it a full disk shows when a page is written, and ends the process by SIGBUS.
    """
    array = np.lib.format.open_memmap(target, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with target.open("r+b") as handle:
            try:
                os.posix_fallocate(handle.fileno(), 0, max(1, target.stat().st_size))
            except OSError as error:
                if error.errno not in _UNKNOWN:
                    raise
    return array
