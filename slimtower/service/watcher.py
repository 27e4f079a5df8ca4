"""Notices a new release, loads it beside the old one, and swaps one reference: no request sees parts of two."""

import gc
import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from slimtower.common.errors import UserError, exhausted, line
from slimtower.service.sources import Source
from slimtower.service.systems import Served, Serving, stamp
from slimtower.service.telemetry import LOGGER, Metrics

_LONGEST_WAIT_S = 300.0  # between two tries to load what does not load
_FIRST_TRIES, _FIRST_WAIT_S = 3, 1.0
POLL, DEFAULT = "(source)", "(default)"  # stand for a name where the failure is of no release
UNTOLD, BROKEN, MISSING, UNDECIDED = "cannot tell what to serve", "does not load", "gone", "no default"


@dataclass(frozen=True)
class Failure:
    """Why something is not served."""

    key: Hashable
    kind: str
    """What anybody may know of it."""
    message: str
    """For the log: it may name folders and servers."""
    since: str
    tries: int
    next_try: float
    """By the monotonic clock."""


class Watcher:
    """Keeps `current` up to date with a source. Written by one thread at a time, read by all."""

    def __init__(self, source: Source, poll_s: float, metrics: Metrics) -> None:
        self.source, self.poll_s, self.metrics = source, poll_s, metrics
        self.current: Serving | None = None
        self.failures: dict[str, Failure] = {}
        self.swapped: Callable[[], None] = lambda: None
        """Called after a swap, by the thread that looks; must not raise."""
        self._keys: dict[str, Hashable] = {}
        self._loaded: dict[str, Served] = {}  # what should serve, and does once it can be told which is the default
        self._stop, self._started = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self, wait_s: float) -> None:
        """Look now where nobody did yet, and from then on every `poll_s` seconds.

        Returns once there is a release, or none can be had, and after `wait_s` at the latest: a process without a
        release would refuse what its neighbours answer, but of a large one it has to be heard that it is coming.
        """
        self._thread.start()
        self._started.wait(wait_s)

    def stop(self) -> None:
        """Stop looking; what is being loaded is let go."""
        self._stop.set()

    def refresh(self) -> None:
        """Ask the source once, load what is new, and swap. Failures are noted, and what served goes on serving."""
        keys = self._poll()
        if keys is None:
            return
        for name in list(self.failures):
            if name not in {POLL, DEFAULT, *keys, *self._keys}:
                del self.failures[name]
        new = dict(self._loaded)
        for name, key in keys.items():
            if self._keys.get(name) == key:
                self.failures.pop(name, None)  # what did not load was taken back
            elif (served := self._load(name, key)) is not None:
                new[name], self._keys[name] = served, key
        for name in self._loaded.keys() - keys.keys():
            self._fail(name, MISSING, MISSING, f"{name}: is no longer there; what was loaded goes on serving")
        self._loaded = new
        if new:
            self._swap(new)

    def _poll(self) -> dict[str, Hashable] | None:
        try:
            keys = dict(self.source.poll())
        except Exception as error:  # whatever a registry or a disk comes up with: the old release goes on
            self._fail(POLL, UNTOLD, UNTOLD, _error_text(error))
            return None
        self.failures.pop(POLL, None)
        return keys

    def _load(self, name: str, key: Hashable) -> Served | None:
        failed = self.failures.get(name)
        if failed and failed.key == key and time.monotonic() < failed.next_try:
            return None
        began = time.perf_counter()
        try:
            served = self.source.load(name, key)
        except Exception as error:  # a release that does not load must not end the service
            self._fail(name, key, BROKEN, _error_text(error))
            return None
        self.failures.pop(name, None)
        identity = served.identity
        LOGGER.info("loaded", extra={"data": {"system": name, "s": round(time.perf_counter() - began, 3), **identity}})
        return served

    def _swap(self, students: dict[str, Served]) -> None:
        names = sorted(students)
        try:
            default = self.source.default(names)
        except Exception as error:  # of a file that is being written, too
            self._fail(DEFAULT, UNDECIDED, UNDECIDED, _error_text(error))
            return
        self.failures.pop(DEFAULT, None)
        before = self.current
        default = default or (before.default if before and before.default in students else names[0])
        if before and before.students == students:
            if before.default != default:  # `evaluate` writes its choice after the releases
                self.current = Serving(before.students, default)
            return
        self.current = Serving({name: students[name] for name in names}, default)
        if before:
            self.metrics.count("slimtower_swaps_total")
        gc.collect()  # the old index is large: free it once its last request ends
        self.swapped()

    def _fail(self, name: str, key: Hashable, kind: str, message: str) -> None:
        before = self.failures.get(name)
        same = before is not None and before.key == key
        tries = before.tries + 1 if before and same else 1
        wait = min(self.poll_s * 2 ** min(tries, 30), _LONGEST_WAIT_S)  # of more no number is made
        since = before.since if before and same else stamp(time.time())
        self.failures[name] = Failure(key, kind, message, since, tries, time.monotonic() + wait)
        self.metrics.count("slimtower_load_failures_total")
        if before is None or (before.key, before.message) != (key, message):
            LOGGER.error("not loaded", extra={"data": {"system": name, "error": message}})

    def _run(self) -> None:
        self._safely(self._first_looks)
        self._started.set()
        while not self._stop.wait(self.poll_s * random.uniform(0.8, 1.2)):  # loading takes processors: not all at once
            self._safely(self.refresh)

    def _first_looks(self) -> None:
        """What is there but does not load is tried again at once: it may have been replaced just then."""
        for _ in range(_FIRST_TRIES):
            if self.current is None:
                self.failures.clear()
                self.refresh()
            if self.current is not None or not self.failures:
                break
            self._stop.wait(_FIRST_WAIT_S)

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a thread that ends here would never see another release
            LOGGER.error("defect", exc_info=error)


def _error_text(error: Exception) -> str:
    user_error = error if isinstance(error, UserError) else exhausted(error)
    return line(user_error) if user_error else f"{type(error).__name__}: {line(error)[:300]}"
