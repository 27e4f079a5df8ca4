"""What processes that belong together do when one of them dies."""

import ctypes
import signal
import sys


def end_with_parent() -> None:
    """Let Linux kill this process when the one that started it dies, so that none works on beside its successor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
