"""sources.json: the files of every outside source with size and digest, so that DVC sees when they change."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.ingest.document_vectors import PATTERNS
from steps.ingest.locations import listing
from steps.ingest.params import IngestParams, VectorFiles
from steps.ingest.partitions import matches
from steps.ingest.source import UNLABELLED_QUERIES, Location


def write_listing(params: IngestParams, path: Path) -> None:
    """Write the listing; its bytes change only when a listed file does."""
    write_json(path, list_sources(params))


def list_sources(params: IngestParams) -> list[dict[str, Any]]:
    """{source, path inside the source, bytes, sha256 or (s3) etag} of every file that ingest reads from outside.

    Of logs only the partitions of the window are listed. Raises UserError for a place that does not exist.
    """
    listed: list[dict[str, Any]] = []
    for source, location in _locations(params):
        _check(location)
        files = listing(location.place, key=location.key, window=location.window, patterns=location.patterns)
        listed += [{"source": source} | file | {"path": f"{location.prefix}{file['path']}"} for file in files]
    return listed


def by_key(params: IngestParams, listed: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of `list_sources` as `listing` gave them, by the key in params.yaml of their location."""
    locations = list(_locations(params))
    keyed: dict[str, list[dict[str, Any]]] = {location.key: [] for _, location in locations}
    for row in listed:
        for source, location in locations:
            path = row["path"].removeprefix(location.prefix)
            is_below = row["source"] == source and row["path"].startswith(location.prefix)
            if is_below and matches(path, location.patterns):
                keyed[location.key].append(dict(row) | {"path": path})
                break
    return keyed


def _locations(params: IngestParams) -> Iterator[tuple[str, Location]]:
    """Every location, and the data set or list whose it is."""
    for at, source in enumerate(params.sources):
        for location in source.locations(f"ingest.sources[{at}]", params.window):
            yield source.name, location
    for name, vectors in params.document_vectors.items():
        if isinstance(vectors, VectorFiles):
            key = f"ingest.document_vectors.{name}"
            yield name, Location(vectors.path, f"{key}.path", "document_vectors/", patterns=PATTERNS)
            if vectors.ids:
                yield name, Location(vectors.ids, f"{key}.ids", "vector_ids/")
    for name, place, lines in (
        (UNLABELLED_QUERIES, params.unlabelled_queries, "queries"),
        ("term_scores", params.term_scores, 'lines "term<TAB>score"'),
    ):
        if place:
            yield name, Location(place, f"ingest.{name}", lines=lines)


def _check(location: Location) -> None:
    """UserError with what to give instead, for a data set that is no folder and a table that is no file."""
    if "://" in location.place:
        return
    problem = f"params.yaml: {location.key}: DATA {location.place!r} is not a"
    if location.lines and not os.path.isfile(location.place):  # noqa: PTH113
        raise UserError(f'{problem} file; give a TSV of {location.lines}, or "" for none')
    if location.is_folder and not os.path.isdir(location.place):  # noqa: PTH112
        raise UserError(f"{problem} folder; give the folder of the data set (make run ... DATA=folder)")
