"""The embedded default, "API search": find the API object that a summary line describes.

A document is a public function, class or method of an installed package: title = qualified name, topic = module,
content = docstring without its summary. A query is a summary; relevant are all documents that had it.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import OutOfMemory, UserError, end_with_parent
from slimtower.common.files import sha256_text
from steps.core.progress import progress
from steps.core.texts import fold
from steps.ingest.docstrings import Docstring, cut_words, docstrings, package_folder, source_paths, split_docstring
from steps.ingest.params import MAX_QUERY_WORDS, ApiDocsSource
from steps.ingest.rejects import Rejects
from steps.ingest.source_data import Document, Judgement, Query, SourceData, seeded_order

MIN_SUMMARY_WORDS = 4  # a shorter summary is no query
MIN_CONTENT_WORDS = 12  # a shorter docstring is no document
MAX_CONTENT_WORDS = 120  # a document is cut here, as embedding time grows with it
MAX_SUMMARY_DOCUMENTS = 4  # that may share a summary; where more do it is boilerplate, and it and they are left out


class Entry(NamedTuple):
    """A document and the summary that was taken off it."""

    package: str
    title: str
    topic: str
    content: str
    summary: str


class PackageDocs(NamedTuple):
    """What a package gives: documents, why others were left out, files read, and line and path of those in error."""

    entries: list[Entry]
    left_out: Counter[str]
    files: int
    broken: list[tuple[int, str]]


def read_api_docs(source: ApiDocsSource, *, key: str, seed: int, rejects: Rejects) -> SourceData:
    """Read the documentation of the source's packages; `key` is where params.yaml names the source.

    Raises UserError for a package that is not installed and when too few queries are left for the three splits.
    """
    left_out: Counter[str] = Counter()
    entries: dict[str, Entry] = {}
    for package, docs in zip(source.packages, _packages(source, key), strict=True):
        left_out += docs.left_out
        for _ in range(docs.files):
            rejects.count_row(f"{source.name}/{package}")
        for line, path in docs.broken:
            rejects.add(f"{source.name}/{package}", line, "unparsable_file", path)
        rejects.check(f"{source.name}/{package}", f"package {package}")
        for entry in docs.entries:
            if entries.setdefault(entry.title, entry) is not entry:
                left_out["title_seen_before"] += 1
    usable = _without_common_summaries(entries.values(), left_out)
    selected = balanced_cut(usable, source.max_documents, seed)
    left_out["over_max_documents"] = len(usable) - len(selected)

    data = SourceData(source.name)
    data.facts["left_out"] = dict(sorted(left_out.items()))
    data.facts["packages"] = dict(sorted(Counter(entry.package for entry in selected).items()))
    groups: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in selected:
        groups[fold(entry.summary)].append(entry)
        doc_id = f"{source.name}/{entry.title}"
        data.documents.append(Document(doc_id, source.name, entry.title, entry.topic, entry.content))
    for at, (text, split) in enumerate(_splits(groups, source, key, seed).items(), start=1):
        query_id = f"{source.name}/{sha256_text(text)[:16]}"
        summary = min(entry.summary for entry in groups[text])
        data.queries.append(Query(query_id, source.name, summary, split, f"{source.name}/summaries", at))
        data.judgements += [
            Judgement(query_id, source.name, f"{source.name}/{entry.title}", 1, split) for entry in groups[text]
        ]
    return data


def _packages(source: ApiDocsSource, key: str) -> Iterator[PackageDocs]:
    """What each package gives, in their order; several are read at once where there are cores for it."""
    folders = [package_folder(package, f"{key}.packages") for package in source.packages]
    processes = min(len(folders), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if processes == 1:
        yield from progress(map(read_package, source.packages, folders), len(folders), "API documentation")
        return
    try:
        with ProcessPoolExecutor(processes, get_context("spawn"), end_with_parent) as pool:
            yield from progress(pool.map(read_package, source.packages, folders), len(folders), "API documentation")
    except BrokenProcessPool:
        raise OutOfMemory(
            f"{key}.packages: a process that read them was killed, as for want of memory; give it more, or name fewer"
        ) from None


def read_package(package: str, folder: Path) -> PackageDocs:
    """The documents of one package, from its source files."""
    entries: list[Entry] = []
    left_out: Counter[str] = Counter()
    broken: list[tuple[int, str]] = []
    paths = source_paths(folder)
    for path in paths:
        try:
            file_docstrings = docstrings(package, folder, path)
        except (SyntaxError, ValueError) as error:
            broken.append((getattr(error, "lineno", None) or 1, path))
            continue
        file_entries = (as_entry(package, docstring, left_out) for docstring in file_docstrings)
        entries += filter(None, file_entries)
    return PackageDocs(entries, left_out, len(paths), broken)


def as_entry(package: str, docstring: Docstring, left_out: Counter[str]) -> Entry | None:
    """The document and query of a docstring; None, counted by reason, where it makes no search task."""
    parts = split_docstring(docstring.text)
    if parts is None:
        left_out["no_summary_and_content"] += 1
        return None
    summary, content = parts[0], cut_words(parts[1], MAX_CONTENT_WORDS)
    summary_words = len(fold(summary).split())
    if summary_words < MIN_SUMMARY_WORDS or len(summary.split()) > MAX_QUERY_WORDS:
        left_out["summary_length"] += 1
    elif len(content.split()) < MIN_CONTENT_WORDS:
        left_out["content_too_short"] += 1
    elif fold(summary) in fold(content):
        left_out["content_repeats_summary"] += 1
    else:
        return Entry(package, docstring.title, docstring.module, content, summary)
    return None


def _without_common_summaries(entries: Iterable[Entry], left_out: Counter[str]) -> list[Entry]:
    """Entries whose summary few documents share: more is boilerplate that tells none of them apart."""
    everything = list(entries)
    shared = Counter(fold(entry.summary) for entry in everything)
    distinctive = [entry for entry in everything if shared[fold(entry.summary)] <= MAX_SUMMARY_DOCUMENTS]
    left_out["summary_shared_by_too_many"] = len(everything) - len(distinctive)
    return distinctive


def balanced_cut(entries: list[Entry], limit: int, seed: int) -> list[Entry]:
    """At most `limit` entries, seeded; large packages give way first until all that are cut have equally many."""
    by_package: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        by_package[entry.package][entry.title] = entry
    room = limit
    selected: list[Entry] = []
    smallest_first = sorted(by_package, key=lambda package: (len(by_package[package]), package))
    for at, package in enumerate(smallest_first):
        share = room // (len(smallest_first) - at)
        chosen = seeded_order(by_package[package], seed, "cut")[:share]
        room -= len(chosen)
        selected += [by_package[package][title] for title in chosen]
    return sorted(selected, key=lambda entry: entry.title)


def _splits(groups: Iterable[str], source: ApiDocsSource, key: str, seed: int) -> dict[str, str]:
    """Split of every query text, seeded: the first are test, the next dev, the rest train."""
    order = seeded_order(groups, seed, "split")
    evaluation = source.test_queries + source.dev_queries
    if len(order) <= evaluation:
        raise UserError(
            f"params.yaml: {key}: the packages give {len(order)} queries, too few for test_queries"
            f" {source.test_queries} + dev_queries {source.dev_queries} and a train split; add packages or lower them"
        )
    return {
        text: "test" if at < source.test_queries else "dev" if at < evaluation else "train"
        for at, text in enumerate(order)
    }
