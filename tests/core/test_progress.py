"""Bars: they move however long an item takes, count what people count, and are one line, without a flood in a log."""

import io
import time
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from steps.core import progress as module
from steps.core.progress import Bar, progress
from steps.encoders.towers import encode_with_lengths


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


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


def test_a_terminal_has_one_line_that_is_taken_away_at_the_end() -> None:
    terminal = Terminal()
    with Bar(None, "evaluate", stream=terminal):
        time.sleep(0.1)
    written = terminal.getvalue()
    assert "\n" not in written and "evaluate: 0 s\r" in written and written.endswith("\r\x1b[K")


@pytest.mark.medium
def test_work_within_work_is_named_behind_it_and_shows_nothing_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(None, "evaluate"):
        for _ in progress(range(2), 2, "latency"):
            time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("evaluate: 0 s") for line in lines)
    assert "evaluate: 0 s: latency" in lines
    assert not module._open


@pytest.mark.parametrize(("items", "counts"), [(range(0, 10, 4), [0, 4, 8, 10]), (["a", "b"], [0, 1, 2])])
def test_starts_of_batches_count_what_is_in_them(items: object, counts: list[int]) -> None:
    found = []
    bar: Bar | None = None
    for _ in progress(items, len(items), "score"):  # type: ignore[arg-type, var-annotated]
        (bar,) = module._open
        found.append(bar.done)
    assert bar is not None and [*found, bar.done] == counts
    assert bar.line().startswith(f"score: {counts[-1]} of {counts[-1]} in ")


def test_the_rest_is_guessed_once_something_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Bar(lambda: 300, "distill", "steps")
    bar._start -= 100
    assert bar.line() == "distill: 0 of 300 steps in 1 min 40 s"
    bar.advance(100)
    assert bar.line() == "distill: 100 of 300 steps in 1 min 40 s, about 3 min 20 s to go"


def test_the_guess_falls_while_an_item_takes_long_and_is_left_out_if_it_proved_wrong() -> None:
    bar = Bar(300, "embed", "texts")
    bar._start -= 100
    bar.advance(100)
    bar._start -= 50
    assert bar.line() == "embed: 100 of 300 texts in 2 min 30 s, about 2 min 30 s to go"
    bar._start -= 200
    assert bar.line() == "embed: 100 of 300 texts in 5 min 50 s"


def test_items_that_take_longer_count_for_more() -> None:
    bar = Bar(3, "embed", "texts", share=[0.0, 0.8, 0.9].__getitem__)
    bar._start -= 80
    bar.reach(1)
    assert bar.line() == "embed: 1 of 3 texts in 1 min 20 s, about 20 s to go"


def test_embedding_counts_each_batch_of_texts(tiny_tower: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower, seen = SentenceTransformer(str(tiny_tower), device="cpu"), []
    with Bar(10, "embed", "texts") as bar:
        monkeypatch.setattr(Bar, "advance", lambda self, count=1: seen.append((self is bar, count)))
        encode_with_lengths(tower, ["a text"] * 10, "document", batch_size=4)
    assert seen == [(True, 4), (True, 4), (True, 2)]
