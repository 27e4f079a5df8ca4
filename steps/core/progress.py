"""Progress of long work, on stderr."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def progress(items: Iterable[Item], total: int | None, what: str) -> Iterator[Item]:
    """Pass items through with a bar named `what`; a log file gets a line every ten seconds, not a flood.

    Of processes that train together (torchrun) only rank 0 shows one.
    """
    interval = 0.5 if _is_terminal() else 10.0
    silent = os.environ.get("RANK", "0") != "0"
    yield from tqdm(
        items, total=total, desc=what, mininterval=interval, maxinterval=interval, leave=False, disable=silent
    )


def _is_terminal() -> bool:
    return sys.stderr.isatty()
