"""Search: verify the release, encode the query, ask the index, print what was found."""

import os
import shutil
import sys
import textwrap
import time
from pathlib import Path

import torch

from steps.core.errors import UserError
from steps.core.release import Release, load_release
from steps.search.documents import Document, read_documents

_SNIPPET = 160  # characters


def run(query: str, folder: Path, dataset: str | None, k: int, ingest: Path) -> None:
    """Print the top `k` hits of the release in `folder` with score, title and snippet, and the time it took.

    `dataset` None is the release's first. UserError when the release is damaged or does not hold the data set.
    """
    torch.set_num_threads(1)  # one short query: threads cost more than they bring, and the report times it so too
    start = time.perf_counter()
    release = load_release(folder)
    chosen = _dataset(release, dataset)
    # The first call pays for lazy set-up; what is timed below is what a running service would take.
    for text in ("warm", "warm up", "warm up an encoder"):
        release.search(chosen, release.encode([text]), k)
    ready = time.perf_counter()
    vectors = release.encode([query])
    encoded = time.perf_counter()
    scores, doc_ids = release.search(chosen, vectors, k)
    searched = time.perf_counter()

    documents = read_documents(ingest, doc_ids[0])
    for rank, (score, doc_id) in enumerate(zip(scores[0], doc_ids[0], strict=False), start=1):
        print(hit(rank, float(score), doc_id, documents.get(doc_id), _width()))
    print(
        f"{folder.name} on {chosen}: encode {(encoded - ready) * 1000:.2f} ms,"
        f" search {(searched - encoded) * 1000:.2f} ms (release verified and loaded in {ready - start:.1f} s)"
    )


def hit(rank: int, score: float, doc_id: str, document: Document | None, width: int) -> str:
    """A hit as text: rank, score and title (the id where there is none), the beginning of its content below."""
    title = (document.title if document else "") or doc_id
    lines = [f"{rank:>2}  {score:.4f}  {_bold(title)}"]
    if document and document.content.strip():
        snippet = textwrap.shorten(document.content, _SNIPPET, placeholder=" …")
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


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
