"""sources.json: the files of every outside source with size and digest, so that DVC sees when they change."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.ingest.document_vectors import PATTERNS as VECTOR_PATTERNS
from steps.ingest.locations import BEIR_PATTERNS, listing
from steps.ingest.msmarco import PATTERNS as MS_MARCO_PATTERNS
from steps.ingest.params import (
    UNLABELLED_QUERIES,
    BeirSource,
    ClickLogSource,
    IngestParams,
    MsMarcoSource,
    Source,
    UbiSource,
)
from steps.ingest.partitions import matches
from steps.ingest.table_rows import PATTERNS
from steps.ingest.times import ALWAYS, Window
from steps.ingest.ubi_events import SESSION_SECONDS
from steps.ingest.vector_params import VectorFiles


def write_listing(params: IngestParams, path: Path) -> None:
    """Write the listing; its bytes change only when a listed file does."""
    write_json(path, list_sources(params))


class _LocationEntry(NamedTuple):
    """A location by its key in params.yaml, and how its files are listed: for which source, below which prefix."""

    source: str
    prefix: str
    location: str
    key: str
    window: Window = ALWAYS
    patterns: Sequence[str] = ()


def list_sources(params: IngestParams) -> list[dict[str, Any]]:
    """{source, path inside the source, bytes, sha256 or (s3) etag} of every file that ingest reads from outside.

    The embedded default has none, nor has ir_datasets, whose id names its files. Of logs only the partitions of the
    window are listed. Raises UserError for a place that does not exist.
    """
    listed: list[dict[str, Any]] = []
    for entry in _locations(params):
        _check(entry)
        files = listing(
            entry.location, key=entry.key, since=entry.window.since, until=entry.window.until, patterns=entry.patterns
        )
        # paths of a source lie below a prefix, which tells its locations apart
        listed += [{"source": entry.source} | file | {"path": f"{entry.prefix}{file['path']}"} for file in files]
    return listed


def by_key(params: IngestParams, listed: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of `list_sources` as `listing` gave them, by the key in params.yaml of their location."""
    rows = list(listed)
    keyed: dict[str, list[dict[str, Any]]] = {}
    for entry in _locations(params):
        location_rows = [row for row in rows if _lies_in(row, entry)]
        rows = [row for row in rows if not _lies_in(row, entry)]
        keyed[entry.key] = [dict(row) | {"path": row["path"].removeprefix(entry.prefix)} for row in location_rows]
    return keyed


def _lies_in(row: Mapping[str, Any], entry: _LocationEntry) -> bool:
    path: str = row["path"]
    name = path.removeprefix(entry.prefix)
    return row["source"] == entry.source and path.startswith(entry.prefix) and matches(name, entry.patterns)


def _locations(params: IngestParams) -> Iterator[_LocationEntry]:
    for at, source in enumerate(params.sources):
        yield from _of_source(source, f"ingest.sources[{at}]", Window.of(params.since, params.until))
    for name, vectors in params.document_vectors.items():
        if isinstance(vectors, VectorFiles):
            key = f"ingest.document_vectors.{name}"
            yield _LocationEntry(name, "document_vectors/", vectors.path, f"{key}.path", patterns=VECTOR_PATTERNS)
            if vectors.ids:
                yield _LocationEntry(name, "vector_ids/", vectors.ids, f"{key}.ids")
    for name, location in ((UNLABELLED_QUERIES, params.unlabelled_queries), ("term_scores", params.term_scores)):
        if location:
            yield _LocationEntry(name, "", location, f"ingest.{name}")


def _of_source(source: Source, key: str, window: Window) -> Iterator[_LocationEntry]:
    match source:
        case BeirSource() | MsMarcoSource():
            patterns = BEIR_PATTERNS if isinstance(source, BeirSource) else MS_MARCO_PATTERNS
            yield _LocationEntry(source.name, "", source.path, f"{key}.path", patterns=patterns)
            if isinstance(source, BeirSource) and source.relevance:
                location = source.relevance
                yield _LocationEntry(source.name, "relevance/", location, f"{key}.relevance", patterns=PATTERNS)
            if isinstance(source, MsMarcoSource) and source.triplets:
                yield _LocationEntry(source.name, "triplets/", source.triplets_location, f"{key}.triplets")
        case ClickLogSource() | UbiSource():
            logs = [("path", window)]
            if isinstance(source, UbiSource):
                logs = [("queries", window), ("events", window.longer(SESSION_SECONDS))]
            for field, field_window in (("corpus", ALWAYS), *logs, ("relevance", ALWAYS)):
                if location := getattr(source, field):
                    yield _LocationEntry(source.name, f"{field}/", location, f"{key}.{field}", field_window, PATTERNS)


def _check(entry: _LocationEntry) -> None:
    """UserError with what to give instead, for a data set that is no folder and a table that is no file."""
    if "://" in entry.location:
        return
    lines = {f"ingest.{UNLABELLED_QUERIES}": "queries", "ingest.term_scores": 'lines "term<TAB>score"'}
    if entry.prefix == "triplets/":
        lines[entry.key] = "query, positive and negative id"
    if entry.key in lines and not os.path.isfile(entry.location):  # noqa: PTH113
        raise UserError(
            f"params.yaml: {entry.key}: DATA {entry.location!r} is not a file; give a TSV of"
            f' {lines[entry.key]}, or "" for none'
        )
    if entry.patterns in (BEIR_PATTERNS, MS_MARCO_PATTERNS) and not os.path.isdir(entry.location):  # noqa: PTH112
        raise UserError(
            f"params.yaml: {entry.key}: DATA {entry.location!r} is not a folder;"
            " give the folder of the data set (make run ... DATA=folder)"
        )
