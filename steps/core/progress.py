"""Progress of long work, on stderr."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def progress(
    items: Iterable[Item], total: int | None, what: str, so_far: Callable[[], str] | None = None
) -> Iterator[Item]:
    """Pass items through with a bar named `what`; a log file gets a line every ten seconds, not a flood.

    `so_far` says what stands behind the bar, after each item.
    Of processes that train together (torchrun) only rank 0 shows one.
    """
    interval = 0.5 if _is_terminal() else 10.0
    silent = os.environ.get("RANK", "0") != "0"
    bar = tqdm(items, total=total, desc=what, mininterval=interval, maxinterval=interval, leave=False, disable=silent)
    for item in bar:
        yield item
        if so_far:
            bar.set_postfix_str(so_far(), refresh=False)


def _is_terminal() -> bool:
    return sys.stderr.isatty()
