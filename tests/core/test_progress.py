"""Bars: they move however long an item takes, count what people count, and are one line, without a flood in a log."""

import io
import time

import pytest

from steps.core import progress as module
from steps.core.progress import Bar, progress


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come every few milliseconds, not every ten seconds."""
    monkeypatch.setattr(module, "_LOG_S", 0.02)
    monkeypatch.setattr(module, "_TERMINAL_S", 0.02)


@pytest.mark.medium
def test_a_log_gets_lines_while_a_single_item_takes_long() -> None:
    log = io.StringIO()
    with Bar(3, "embed", "texts", lambda: "0.10 dollars", log) as bar:
        bar.advance(2)
        time.sleep(0.2)
    lines = log.getvalue().splitlines()
    assert len(lines) > 2 and set(lines) == {"embed: 2 of 3 texts in 0 s; 0.10 dollars"}


def test_a_terminal_has_one_line_that_is_taken_away_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with Bar(None, "evaluate", stream=terminal):
        while not terminal.getvalue():
            time.sleep(0.01)
    written = terminal.getvalue()
    assert "\n" not in written and "evaluate: 0 s\r" in written and written.endswith("\r\x1b[K")


@pytest.mark.parametrize(("items", "counts"), [(range(0, 10, 4), [0, 4, 8, 10]), (["a", "b"], [0, 1, 2])])
def test_starts_of_batches_count_what_is_in_them(items: object, counts: list[int]) -> None:
    counted = []
    bar: Bar | None = None
    for _ in progress(items, len(items), "score"):  # type: ignore[arg-type, var-annotated]
        (bar,) = module._open
        counted.append(bar.done)
    assert bar is not None and [*counted, bar.done] == counts
    assert bar.line().startswith(f"score: {counts[-1]} of {counts[-1]} in ")


def test_the_rest_is_guessed_once_something_is_done_and_until_it_proved_wrong() -> None:
    bar = Bar(lambda: 300, "distill", "steps")
    bar._start -= 100
    assert bar.line() == "distill: 0 of 300 steps in 1 min 40 s"
    bar.advance(100)
    assert bar.line() == "distill: 100 of 300 steps in 1 min 40 s, about 3 min 20 s to go"
    bar._start -= 50
    assert bar.line() == "distill: 100 of 300 steps in 2 min 30 s, about 2 min 30 s to go"
    bar._start -= 200
    assert bar.line() == "distill: 100 of 300 steps in 5 min 50 s"
    uneven = Bar(3, "embed", "texts", share=[0.0, 0.8, 0.9].__getitem__)
    uneven._start -= 80
    uneven.reach(1)
    assert uneven.line() == "embed: 1 of 3 texts in 1 min 20 s, about 20 s to go"
