"""What the searchers found: documents of a query among which the ranker finds the best."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.core.tables import SCHEMAS, table_path

_ROWS = 2**17  # in memory at once


def searchers(folder: Path) -> list[str]:
    """Names of the searchers below a folder, in order; UserError without any."""
    names = sorted(path.name for path in folder.glob("[!.]*") if (path / "candidates.parquet").is_file())
    if not names:
        raise UserError(f"{folder}: holds no candidates; run the stage `candidates` before the ranker")
    return names


def queries_with_candidates(folder: Path) -> set[str]:
    """Ids of the queries for which some searcher found documents."""
    query_ids: set[str] = set()
    for name in searchers(folder):
        for batch in _batches(folder / name, ["query_id"]):
            query_ids.update(pc.unique(batch["query_id"]).to_pylist())
    return query_ids


def read_candidates(folder: Path, searcher: str, query_ids: Iterable[str], depth: int) -> pa.Table:
    """A searcher's documents of some queries up to rank `depth`, as the table `candidates`."""
    selected = pa.array(sorted(query_ids), pa.string())
    batches = [
        batch.filter(pc.and_(pc.less_equal(batch["rank"], depth), pc.is_in(batch["query_id"], selected)))
        for batch in _batches(folder / searcher, SCHEMAS["candidates"].names)
    ]
    return pa.Table.from_batches(batches, SCHEMAS["candidates"])


def union(folder: Path, query_ids: Iterable[str], depth: int) -> dict[str, list[str]]:
    """Documents of each query that any searcher ranks up to `depth`, each once, in the order of their ids."""
    tables = [
        read_candidates(folder, name, query_ids, depth).select(["query_id", "doc_id"]) for name in searchers(folder)
    ]
    once = pa.concat_tables(tables).group_by(["query_id", "doc_id"]).aggregate([])
    named: dict[str, list[str]] = {}
    once = once.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    for query_id, doc_id in zip(once["query_id"].to_pylist(), once["doc_id"].to_pylist(), strict=True):
        named.setdefault(query_id, []).append(doc_id)
    return named


def draw_ids(ids: Iterable[str], limit: int, seed: int) -> list[str]:
    """At most `limit` of the ids by seed, in order."""
    ordered = sorted(ids)
    if len(ordered) <= limit:
        return ordered
    rows = np.random.default_rng(seed).choice(len(ordered), size=limit, replace=False)
    return [ordered[row] for row in np.sort(rows).tolist()]


def _batches(folder: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(table_path(folder, "candidates")) as table:
        yield from table.iter_batches(_ROWS, columns=columns)
