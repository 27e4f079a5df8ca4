"""sources.json: the files of every outside source with size and digest, so that DVC sees when they change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import write_json
from steps.core.params.ingest import BeirSource, ClickLogSource, IngestParams, MsMarcoSource, Source, UbiSource
from steps.ingest.locations import listing
from steps.ingest.msmarco import PATTERNS as MS_MARCO_PATTERNS
from steps.ingest.source_files import BEIR_PATTERNS
from steps.ingest.table_rows import PATTERNS
from steps.ingest.times import ALWAYS, Window


def write_listing(params: IngestParams, path: Path) -> None:
    """Write the listing; its bytes change only when a listed file does."""
    write_json(path, list_sources(params))


def list_sources(params: IngestParams) -> list[dict[str, Any]]:
    """{source, path inside the source, bytes, sha256 or (s3) etag} of every file that ingest reads from outside.

    The embedded default has none, nor has ir_datasets, whose id names its files. Of logs only the partitions of the
    window are listed. Raises UserError for a place that does not exist.
    """
    listed: list[dict[str, Any]] = []
    for at, source in enumerate(params.sources):
        listed += _of_source(source, f"ingest.sources[{at}]", Window.of(params.since, params.until))
    for name, location in (("pool", params.pool), ("term_scores", params.term_scores)):
        if location:
            what = "queries" if name == "pool" else 'lines "term<TAB>score"'
            if "://" not in location and not Path(location).is_file():
                raise UserError(
                    f'params.yaml: ingest.{name}: DATA {location!r} is not a file; give a TSV of {what}, or "" for none'
                )
            listed += _entries(name, "", location, f"ingest.{name}")
    return listed


def _of_source(source: Source, key: str, window: Window) -> list[dict[str, Any]]:
    match source:
        case BeirSource() | MsMarcoSource():
            if "://" not in source.path and not Path(source.path).is_dir():
                raise UserError(
                    f"params.yaml: {key}.path: DATA {source.path!r} is not a folder;"
                    " give the folder of the data set (make run ... DATA=folder)"
                )
            patterns = BEIR_PATTERNS if isinstance(source, BeirSource) else MS_MARCO_PATTERNS
            listed = _entries(source.name, "", source.path, f"{key}.path", patterns=patterns)
            if isinstance(source, BeirSource) and source.relevance:
                listed += _entries(source.name, "relevance/", source.relevance, f"{key}.relevance", patterns=PATTERNS)
            return listed
        case ClickLogSource() | UbiSource():
            logs = ("path",) if isinstance(source, ClickLogSource) else ("queries", "events")
            places = [("corpus", ALWAYS), *((log, window) for log in logs), ("relevance", ALWAYS)]
            return [
                entry
                for place, when in places
                if (location := getattr(source, place))
                for entry in _entries(source.name, f"{place}/", location, f"{key}.{place}", when, PATTERNS)
            ]
        case _:
            return []


def _entries(
    source: str, prefix: str, location: str, key: str, window: Window = ALWAYS, patterns: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The files of a location, their paths below `prefix`, which tells the locations of a source apart."""
    files = listing(location, key=key, since=window.since, until=window.until, patterns=patterns)
    return [{"source": source} | file | {"path": f"{prefix}{file['path']}"} for file in files]
