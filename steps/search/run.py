"""Search: verify the release, encode the query, ask the index, print what was found."""

import os
import re
import shutil
import sys
import textwrap
import time
from pathlib import Path

from steps.core.errors import UserError
from steps.search.documents import read_contents
from steps.serving.release import Hit, Release, load_release
from steps.serving.snippets import snippet
from steps.serving.timing import CALLS, Times, medians, milliseconds

_SNIPPET = 160  # characters
_WARM_UP = 5  # calls before those that are timed
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def run(query: str, folder: Path, dataset: str | None, k: int, ingest: Path) -> None:
    """Print the top `k` hits of the release in `folder` with title and snippet, and the median time of the search.

    Scores are printed unless they are fused ones, which say nothing of how well a document fits. `dataset` None is the
    release's first. UserError when the release is damaged or does not hold the data set.
    """
    start = time.perf_counter()
    release = load_release(folder)
    chosen = _dataset(release, dataset)
    loaded = time.perf_counter() - start
    for _ in range(_WARM_UP):
        hits, _ = _search(release, chosen, query, k)
    measured = medians(_search(release, chosen, query, k)[1] for _ in range(CALLS))

    contents = read_contents(ingest, [found.id for found in hits])
    fused = release.fusion(chosen) is not None
    for rank, found in enumerate(hits, start=1):
        print(entry(rank, found, contents.get(found.id, ""), query, _width(), scored=not fused))
    print(
        f"{folder.name}{' with BM25' if fused else ''} on {chosen}: {milliseconds(measured.total)} ms from text to"
        f" hits, {milliseconds(measured.encode)} ms of it encoding (median of {measured.calls} calls, after the release"
        f" was loaded and verified in {loaded:.1f} s)"
    )


def _search(release: Release, dataset: str, query: str, k: int) -> tuple[list[Hit], Times]:
    """The hits of one query, and how long they took."""
    start = time.perf_counter()
    vectors = release.encode([query])
    encoded = time.perf_counter()
    hits = release.answers(dataset, [query], vectors, k)[0]
    return hits, Times(1e3 * (encoded - start), 1e3 * (time.perf_counter() - encoded))


def entry(rank: int, found: Hit, content: str, query: str, width: int, *, scored: bool) -> str:
    """A hit as text: rank, title (the id if there is none) and score, with the part of its content that fits below."""
    score = f"{found.score:.4f}  " if scored else ""
    lines = [f"{rank:>2}  {score}{_bold(_printable(found.title or found.id))}"]
    if content.strip():
        indent = " " * (4 + len(score))
        text = _printable(snippet(content, query, _SNIPPET))
        lines.append(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))
    return "\n".join(lines)


def _dataset(release: Release, name: str | None) -> str:
    if name is None:
        return release.datasets[0]
    if name not in release.datasets:
        known = ", ".join(release.datasets)
        raise UserError(f"search: data set {name!r} is not in this release; choose one of {known}")
    return name


def _width() -> int:
    return max(40, min(shutil.get_terminal_size().columns, 110))


def _printable(text: str) -> str:
    """Without control characters: a document's are no commands to the terminal."""
    return _CONTROL.sub(" ", text)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
