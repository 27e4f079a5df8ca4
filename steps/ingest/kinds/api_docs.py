"""The embedded default, "API search": find the API object that a summary line describes.

A document is a public function, class or method of an installed package: title = qualified name, topic = module,
content = docstring without its summary. A query is a summary; relevant are all documents that had it.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from slimtower.common.errors import OutOfMemory, UserError, end_with_parent
from steps.core.progress import progress
from steps.core.texts import fold
from steps.ingest.docstrings import Docstring, cut_words, docstrings, package_folder, source_paths, split_docstring
from steps.ingest.rows import Defect
from steps.ingest.source import (
    MAX_QUERY_WORDS,
    Document,
    Judgement,
    Query,
    ReadContext,
    Source,
    SourceData,
    seeded_order,
    text_id,
)

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
    """What a package gives: documents, why others were left out, and its files, each with its line in error or 0."""

    entries: list[Entry]
    left_out: Counter[str]
    files: dict[str, int]


class ApiDocsSource(Source):
    """The embedded default: API documentation of installed Python packages."""

    simulates_sessions = True

    kind: Literal["api_docs"]
    """The documentation of installed packages, read from their source files, never imported; needs no download."""
    packages: list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]] = Field(min_length=1)
    """Packages that are read; their locked versions fix the corpus."""
    max_documents: int = Field(default=6000, ge=1)
    """Most documents, drawn by seed; those of large packages are left out first."""
    test_queries: int = Field(default=1200, ge=1)
    """Test queries. Only queries are split: every document stays in the corpus."""
    dev_queries: int = Field(default=600, ge=0)
    """Dev queries; the rest is train."""

    def read(self, context: ReadContext) -> SourceData:
        """Read the documentation of the packages.

        Raises UserError for a package that is not installed and when too few queries are left for the three splits.
        """
        left_out: Counter[str] = Counter()
        entries: dict[str, Entry] = {}
        for package, docs in zip(self.packages, _packages(self.packages, f"{context.key}.packages"), strict=True):
            source = f"{self.name}/{package}"
            left_out += docs.left_out
            files = ((line, path) for path, line in docs.files.items())
            for line, _, guard in context.rejects.guarded(files, source, f"package {package}"):
                with guard:
                    if line:
                        raise Defect("unparsable_file")
            for entry in docs.entries:
                if entries.setdefault(entry.title, entry) is not entry:
                    left_out["title_seen_before"] += 1
        usable = _without_common_summaries(entries.values(), left_out)
        selected = balanced_cut(usable, self.max_documents, context.seed)
        left_out["over_max_documents"] = len(usable) - len(selected)

        data = SourceData(self.name)
        data.facts["left_out"] = dict(sorted(left_out.items()))
        data.facts["packages"] = dict(sorted(Counter(entry.package for entry in selected).items()))
        groups: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in selected:
            groups[fold(entry.summary)].append(entry)
            doc_id = f"{self.name}/{entry.title}"
            data.documents.append(Document(doc_id, self.name, entry.title, entry.topic, entry.content))
        for at, (text, split) in enumerate(self._splits(groups, context).items(), start=1):
            query_id = text_id(self.name, text)
            summary = min(entry.summary for entry in groups[text])
            data.queries.append(Query(query_id, self.name, summary, split, f"{self.name}/summaries", at))
            data.judgements += [
                Judgement(query_id, self.name, f"{self.name}/{entry.title}", 1, split) for entry in groups[text]
            ]
        return data

    def _splits(self, groups: Iterable[str], context: ReadContext) -> dict[str, str]:
        """Split of every query text, seeded: the first are test, the next dev, the rest train."""
        order = seeded_order(groups, context.seed, "split")
        evaluation = self.test_queries + self.dev_queries
        if len(order) <= evaluation:
            raise UserError(
                f"params.yaml: {context.key}: the packages give {len(order)} queries, too few for test_queries"
                f" {self.test_queries} + dev_queries {self.dev_queries} and a train split; add packages or lower them"
            )
        splits = chain(repeat("test", self.test_queries), repeat("dev", self.dev_queries), repeat("train"))
        return dict(zip(order, splits, strict=False))


def _packages(packages: Sequence[str], key: str) -> Iterator[PackageDocs]:
    """What each package gives, in their order; several are read at once where there are cores for it."""
    folders = [package_folder(package, key) for package in packages]
    processes = min(len(folders), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if processes == 1:
        yield from progress(map(read_package, packages, folders), len(folders), "API documentation")
        return
    try:
        with ProcessPoolExecutor(processes, get_context("spawn"), end_with_parent) as pool:
            yield from progress(pool.map(read_package, packages, folders), len(folders), "API documentation")
    except BrokenProcessPool:
        raise OutOfMemory(
            f"{key}: a process that read them was killed, as for want of memory; give it more, or name fewer"
        ) from None


def read_package(package: str, folder: Path) -> PackageDocs:
    """The documents of one package, from its source files."""
    docs = PackageDocs([], Counter(), dict.fromkeys(source_paths(folder), 0))
    for path in docs.files:
        try:
            file_docstrings = docstrings(package, folder, path)
        except (SyntaxError, ValueError) as error:
            docs.files[path] = getattr(error, "lineno", None) or 1
            continue
        entries = (as_entry(package, docstring, docs.left_out) for docstring in file_docstrings)
        docs.entries.extend(filter(None, entries))
    return docs


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
