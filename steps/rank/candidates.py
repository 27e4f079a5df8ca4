"""What the searchers found: documents of a query among which the ranker finds the best."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.core.tables import table_path


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
        with pq.ParquetFile(table_path(folder / name, "candidates")) as table:
            for batch in table.iter_batches(columns=["query_id"]):
                query_ids.update(pc.unique(batch["query_id"]).to_pylist())
    return query_ids


def read_candidates(folder: Path, searcher: str, query_ids: Iterable[str], depth: int) -> pa.Table:
    """A searcher's documents of some queries up to rank `depth`, as the table `candidates`."""
    chosen = (pc.field("rank") <= depth) & pc.field("query_id").isin(pa.array(sorted(query_ids), pa.string()))
    # the project may lie in run=5/, which is no partition
    return pq.read_table(table_path(folder / searcher, "candidates"), filters=chosen, partitioning=None)


def union(folder: Path, query_ids: Iterable[str], depth: int) -> dict[str, list[str]]:
    """Documents of each query that any searcher ranks up to `depth`, each once, in the order of their ids."""
    tables = [read_candidates(folder, name, query_ids, depth) for name in searchers(folder)]
    once = pa.concat_tables(tables).group_by(["query_id", "doc_id"]).aggregate([])
    once = once.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    named: dict[str, list[str]] = {}
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
