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

_SNIPPET = 160  # characters
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def run(query: str, folder: Path, dataset: str | None, k: int, ingest: Path) -> None:
    """Print the top `k` hits of the release in `folder` with score, title and snippet, and the time it took.

    `dataset` None is the release's first. UserError when the release is damaged or does not hold the data set.
    """
    start = time.perf_counter()
    release = load_release(folder)  # warm: it has answered its probes
    chosen = _dataset(release, dataset)
    ready = time.perf_counter()
    vectors = release.encode([query])
    encoded = time.perf_counter()
    hits = release.answers(chosen, [query], vectors, k)[0]
    searched = time.perf_counter()

    contents = read_contents(ingest, [found.id for found in hits])
    for rank, found in enumerate(hits, start=1):
        print(entry(rank, found, contents.get(found.id, ""), _width()))
    fusion = release.fusion(chosen)
    print(
        f"{folder.name}{' and BM25' if fusion else ''} on {chosen}: encode {(encoded - ready) * 1000:.2f} ms,"
        f" search{f' both and fuse ({fusion})' if fusion else ''} {(searched - encoded) * 1000:.2f} ms"
        f" (release verified and loaded in {ready - start:.1f} s)"
    )


def entry(rank: int, found: Hit, content: str, width: int) -> str:
    """A hit as text: rank, score and title (the id where there is none), the beginning of its content below."""
    lines = [f"{rank:>2}  {found.score:.4f}  {_bold(_printable(found.title or found.id))}"]
    if content.strip():
        snippet = textwrap.shorten(_printable(content), _SNIPPET, placeholder=" …")
        lines.append(textwrap.fill(snippet, width, initial_indent=" " * 12, subsequent_indent=" " * 12))
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
