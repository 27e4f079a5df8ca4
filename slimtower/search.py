"""`slimtower search QUERY`: the top hits of a query in a release, and how long they take."""

import argparse
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import read_columns
from slimtower.serving.choice import release_folder, run_root
from slimtower.serving.display import CALLS, EXAMPLE, Times, medians, milliseconds, snippet
from slimtower.serving.query_encoder import is_unicode
from slimtower.serving.release import Hit, Release, load_release

_SNIPPET = 160  # characters
_WARM_UP = 5  # calls before those that are timed
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="slimtower search",
        description="The top hits of a query in a release, and how long they take.",
        epilog=f'example: slimtower search "{EXAMPLE}"',
    )
    parser.add_argument("query", help="what to look for")
    parser.add_argument("--student", default="", help="name of a released student (default: the evaluation's choice)")
    parser.add_argument("--recipe", default="", help="search the run of this recipe, e.g. recipes/scifact.yaml")
    parser.add_argument("--release", default="", help="search this release's folder, wherever it lies")
    parser.add_argument("--k", type=int, default=5, help="number of hits (default: 5)")
    parser.add_argument("--dataset", default="", help="data set to search (default: the first of the release)")
    arguments = parser.parse_args(words)

    check_query(arguments.query, arguments.k)
    if arguments.release and (arguments.student or arguments.recipe):
        raise UserError("search: --release names a folder of its own; leave --student and --recipe out")
    release = arguments.release
    folder = Path(release) if release else release_folder(run_root(arguments.recipe), arguments.student)
    search(arguments.query, folder, arguments.dataset, arguments.k, ingest=folder / "../../../data/ingest")


def check_query(query: str, k: int) -> None:
    """UserError for an empty query, one that is not UTF-8, or for fewer than one hit."""
    if not query.strip():
        raise UserError(f'search: the query is empty; give one, e.g. make search Q="{EXAMPLE}"')
    if not is_unicode(query):  # bytes of the command line that are no UTF-8
        raise UserError("search: the query is not UTF-8; type it in a terminal that is set to UTF-8")
    if k < 1:
        raise UserError(f"search: k is {k}; ask for at least 1 hit")


def search(query: str, folder: Path, dataset: str, k: int, ingest: Path) -> None:
    """Print the top `k` hits of the release in `folder` with title and snippet, and the median time of the search.

    Scores are printed unless they are fused ones, which say nothing of how well a document fits. `dataset` empty is
    the release's first. UserError if the release is damaged or does not hold the data set.
    """
    start = time.perf_counter()
    release = load_release(folder)
    chosen = dataset or release.datasets[0]
    release.kinds(chosen)  # refuses one that is not there
    loaded = time.perf_counter() - start
    for _ in range(_WARM_UP):
        hits, _ = _search(release, chosen, query, k)
    measured = medians(_search(release, chosen, query, k)[1] for _ in range(CALLS))

    contents = read_contents(ingest / "corpus.parquet", [hit.id for hit in hits])
    fused = release.fusion(chosen) is not None
    for rank, hit in enumerate(hits, start=1):
        print(entry(rank, hit, contents.get(hit.id, ""), query, _width(), scored=not fused))
    print(
        f"{folder.name}{' with BM25' if fused else ''} on {chosen}: {milliseconds(measured.total)} ms from text to"
        f" hits, {milliseconds(measured.encode)} ms of it encoding (median of {measured.calls} calls, after the release"
        f" was loaded and verified in {loaded:.1f} s)"
    )


def read_contents(corpus: Path, doc_ids: Sequence[str]) -> dict[str, str]:
    """Contents by document id; ids that the corpus does not hold are left out, all of them where there is no corpus."""
    if not doc_ids or not corpus.is_file():
        return {}
    rows = read_columns(corpus, "doc_id", "content", filters=[("doc_id", "in", list(doc_ids))])
    return dict(zip(rows["doc_id"].to_pylist(), rows["content"].to_pylist(), strict=True))


def _search(release: Release, dataset: str, query: str, k: int) -> tuple[list[Hit], Times]:
    start = time.perf_counter()
    vectors = release.encode([query])
    encoded = time.perf_counter()
    hits = release.answers(dataset, [query], vectors, k)[0]
    return hits, Times(1e3 * (encoded - start), 1e3 * (time.perf_counter() - encoded))


def entry(rank: int, hit: Hit, content: str, query: str, width: int, *, scored: bool) -> str:
    """A hit as text: rank, title (the id if there is none) and score, with the part of its content that fits below."""
    score = f"{hit.score:.4f}  " if scored else ""
    lines = [f"{rank:>2}  {score}{_bold(_printable(hit.title or hit.id))}"]
    if content.strip():
        indent = " " * (4 + len(score))
        text = _printable(snippet(content, query, _SNIPPET))
        lines.append(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))
    return "\n".join(lines)


def _width() -> int:
    return max(40, min(shutil.get_terminal_size().columns, 110))


def _printable(text: str) -> str:
    """Without control characters: a document's are no commands to the terminal."""
    return _CONTROL.sub(" ", text)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
