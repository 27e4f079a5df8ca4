"""The last calls of each system: what the page shows of times, where single calls say little."""

import threading
import time
from collections import deque
from collections.abc import Callable

from slimtower.serving.timing import CALLS, Medians, Times, medians

_FEWEST, _WARM_UP_S = 5, 1.0  # calls of a warm-up, which ends after so many seconds


class Recent:
    """Times of single queries, by system and data set, of the release that answers there now. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], tuple[str, deque[Times]]] = {}  # with the release's manifest

    def note(self, system: str, dataset: str, manifest: str, times: Times) -> None:
        """Remember a call; those of an earlier release are forgotten."""
        with self._lock:
            entry = self._calls.get((system, dataset))
            if entry is None or entry[0] != manifest:
                entry = self._calls[system, dataset] = manifest, deque(maxlen=CALLS)
            entry[1].append(times)

    def medians(self, system: str, dataset: str, manifest: str) -> Medians | None:
        """Over the last calls; None if this release has answered nothing yet."""
        with self._lock:
            entry = self._calls.get((system, dataset))
            calls = list(entry[1]) if entry and entry[0] == manifest else []
        return medians(calls) if calls else None


def warm_up(call: Callable[[], object]) -> None:
    """Call as often as the medians look back, but stop after a second if calls are slow."""
    began = time.perf_counter()
    for done in range(CALLS):
        if done >= _FEWEST and time.perf_counter() - began > _WARM_UP_S:
            return
        call()
