"""Progress of long work, on stderr: one line that moves on a terminal, and in a log a line every ten seconds."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Event, Thread
from typing import Self, TextIO, TypeVar

Item = TypeVar("Item")
Total = int | Callable[[], int | None] | None

_TERMINAL_S, _LOG_S = 0.5, 10.0  # seconds between two lines
_CLEAR = "\x1b[K"  # from here to the end of the line; a bar leaves the cursor at its start
_open: list["Bar"] = []  # the last one is the innermost


class Bar:
    """How much of some work is done. It moves at least every ten seconds, however long a single item takes.

    Work within other work shows nothing of its own: one line is enough. Of processes that train together (torchrun)
    only rank 0 shows any.
    """

    def __init__(
        self,
        total: Total,
        label: str,
        unit: str = "",
        so_far: Callable[[], str] | None = None,
        stream: TextIO | None = None,
        share: Callable[[int], float] | None = None,
    ) -> None:
        """`label` names the work, `unit` what is counted, in the plural; `so_far` returns a text to follow the count.

        A `total` that is not known at the start is a function, which every line calls. `share` returns which share of
        the work the first items are, by their count; without it all items take equally long.
        """
        self.total, self.label, self.unit, self.so_far, self.share = total, label, unit, so_far, share
        self.done, self._counted_s = 0, 0.0  # seconds at which the count last grew
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._over = Event()
        self._ticker: Thread | None = None

    def __enter__(self) -> Self:
        if os.environ.get("RANK", "0") == "0" and not _open:
            self._ticker = Thread(target=self._tick, daemon=True)
            self._ticker.start()
        _open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _open.remove(self)
        self._over.set()
        if self._ticker:
            self._ticker.join()
            if self._terminal:
                self._stream.write(_CLEAR)
                self._stream.flush()

    def advance(self, count: int = 1) -> None:
        """Count so many more as done."""
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """Count so many as done."""
        if done > self.done:
            self._counted_s = time.monotonic() - self._start
        self.done = done

    def line(self) -> str:
        """What it shows now."""
        seconds, total = time.monotonic() - self._start, self.total() if callable(self.total) else self.total
        of = f"{self.done:,}" if total is None else f"{self.done:,} of {max(total, self.done):,}"
        count = " ".join(filter(None, (of, self.unit))) if self.unit or self.done or total else ""
        remaining = ""
        if total and 0 < self.done < total and seconds > 1:
            share = self.share(self.done) if self.share else self.done / total
            expected = self._counted_s / share - seconds
            remaining = f", about {clock(expected)} to go" if expected > 0 else ""
        behind = f"; {text}" if self.so_far and (text := self.so_far()) else ""
        inner = f": {_open[-1].label}" if _open and _open[-1] is not self else ""
        return f"{self.label}: {count}{' in ' if count else ''}{clock(seconds)}{remaining}{behind}{inner}"

    def _tick(self) -> None:
        """Show it now and then until the work is over."""
        while not self._over.wait(_TERMINAL_S if self._terminal else _LOG_S):
            text = self.line()
            cut = text[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"{_CLEAR}{cut}\r" if self._terminal else f"{text}\n")
            self._stream.flush()


def progress(
    items: Iterable[Item],
    total: Total,
    label: str,
    so_far: Callable[[], str] | None = None,
    unit: str = "",
) -> Iterator[Item]:
    """Pass items through with a bar named `label`; `unit` is what is counted, `so_far` returns the text that follows.

    If `items` is a range in steps, the starts of batches, the bar counts the items of the batches.
    """
    batches = items if isinstance(items, range) else None
    with Bar(len(range(batches.start, batches.stop)) if batches else total, label, unit, so_far) as bar:
        for item in items:
            yield item
            bar.advance(min(batches.step, batches.stop - item) if batches and isinstance(item, int) else 1)


def advance(unit: str, count: int) -> None:
    """Count for the bar that is shown, if that is what it counts."""
    if _open and _open[0].unit == unit:
        _open[0].advance(count)


def clock(seconds: float) -> str:
    """A time that was measured, as a person reads it."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def bold(text: str, stream: TextIO) -> str:
    """The text in bold if the stream is a terminal, and nobody asked for no colour (https://no-color.org)."""
    return f"\x1b[1m{text}\x1b[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else text


def over_bar(text: str, stream: TextIO) -> str:
    """A line that is printed where a bar of another process may stand."""
    return f"{_CLEAR}{text}" if stream.isatty() else text
