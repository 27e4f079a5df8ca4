"""sources.json: the files of every outside source with size and digest, so that DVC sees when they change."""

from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import sha256_file, write_json
from steps.core.params.ingest import BeirSource, IngestParams
from steps.ingest.rows import plain_or_gzip


def write_listing(params: IngestParams, path: Path) -> None:
    """Write the listing; its bytes change only when a listed file does."""
    write_json(path, list_sources(params))


def list_sources(params: IngestParams) -> list[dict[str, Any]]:
    """{source, path inside the source, bytes, sha256} of every file that ingest reads from outside.

    The embedded default has none. Raises UserError for a path that does not exist.
    """
    listed: list[dict[str, Any]] = []
    for at, source in enumerate(params.sources):
        if isinstance(source, BeirSource):
            folder = Path(source.path)
            if not folder.is_dir():
                raise UserError(
                    f"params.yaml: ingest.sources[{at}].path: DATA {source.path!r} is not a folder;"
                    " give a BEIR folder (make run ... DATA=folder)"
                )
            listed += [_entry(source.name, file, folder) for file in _files(folder)]
    if params.pool:
        pool = Path(params.pool)
        if not pool.is_file():
            raise UserError(
                f'params.yaml: ingest.pool: DATA {params.pool!r} is not a file; give a TSV of queries, or "" for none'
            )
        listed.append(_entry("pool", pool, pool.parent))
    return listed


def _files(folder: Path) -> list[Path]:
    tables = [plain_or_gzip(folder, name) for name in ("corpus.jsonl", "queries.jsonl")]
    qrels = sorted(path for path in (folder / "qrels").glob("*") if path.name.endswith((".tsv", ".tsv.gz")))
    return [path for path in tables if path is not None] + qrels


def _entry(source: str, file: Path, folder: Path) -> dict[str, Any]:
    return {
        "source": source,
        "path": file.relative_to(folder).as_posix(),
        "bytes": file.stat().st_size,
        "sha256": sha256_file(file),
    }
