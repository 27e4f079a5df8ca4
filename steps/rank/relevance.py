"""The candidates of training queries, and the ranker's scores of them: the table `relevance`, for triplets."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sentence_transformers import CrossEncoder

from slimtower.common.errors import UserError
from steps.core.code import code_digest
from steps.core.corpus import CorpusTexts, check_documents, corpus_columns, texts_of
from steps.core.progress import progress
from steps.core.tables import table_from_columns, table_path
from steps.core.vector_store import ScoreShards, TextFile, text_key
from steps.core.versions import library_versions
from steps.encoders.cut_texts import SAMPLE, sample_rows
from steps.encoders.precision import resolve_precision
from steps.rank.params import DEPTH, CrossEncoderParams
from steps.retrieval.rankers import pair_scores
from steps.training.triplets import refused_queries

QUERIES = 16384  # scored before their scores are written: texts of the documents that these name are copied together
SHARD = 8192  # pairs whose scores are kept at once: what a killed run repeats at most


@dataclass
class ScoringStats:
    """How many queries and documents were scored, and between which scores."""

    queries: int = 0
    scores: int = 0
    smallest: float = math.inf
    largest: float = -math.inf
    shards_computed: int = 0  # not read from an earlier run

    def report(self) -> dict[str, float | int | None]:
        """As JSON; None for the bounds of nothing."""
        bounds = {"min": self.smallest, "max": self.largest} if self.scores else {"min": None, "max": None}
        return {"queries": self.queries, "scores": self.scores, **bounds}


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
    return doc_ids_by_query(once.sort_by([("query_id", "ascending"), ("doc_id", "ascending")]))


def doc_ids_by_query(candidates: pa.Table) -> dict[str, list[str]]:
    """Documents of each query, in the order of the rows."""
    doc_ids: dict[str, list[str]] = {}
    for query_id, doc_id in zip(candidates["query_id"].to_pylist(), candidates["doc_id"].to_pylist(), strict=True):
        doc_ids.setdefault(query_id, []).append(doc_id)
    return doc_ids


def draw_ids(ids: Iterable[str], limit: int, seed: int) -> list[str]:
    """At most `limit` of the ids by seed, in order."""
    ordered = sorted(ids)
    if len(ordered) <= limit:
        return ordered
    rows = np.random.default_rng(seed).choice(len(ordered), size=limit, replace=False)
    return [ordered[row] for row in np.sort(rows).tolist()]


def training_queries(queries: pa.Table, candidates: Path) -> dict[str, str]:
    """Texts of the training queries that have candidates, by id.

    Never a dev or test query, nor one that reads like one.
    """
    refused, with_candidates = refused_queries(queries), queries_with_candidates(candidates)
    selected = with_candidates - refused.keys()
    rows = zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True)
    return {query_id: text for query_id, text in rows if query_id in selected}


def sampled_pairs(
    queries: Mapping[str, str], ingest: Path, candidates: Path, params: CrossEncoderParams
) -> list[tuple[str, str]]:
    """Texts of queries and of candidates of theirs, drawn by seed."""
    ids = draw_ids(queries, SAMPLE, params.seed)
    rows = _pairs(union(candidates, ids, DEPTH))
    sample = [rows[row] for row in sample_rows(len(rows), params.seed).tolist()]
    texts = document_texts(ingest, {doc_id for _, doc_id in sample})
    return [(queries[query_id], texts[doc_id]) for query_id, doc_id in sample]


def relevance_tables(
    ranker: CrossEncoder,
    fingerprint: str,
    queries: Mapping[str, str],
    ingest: Path,
    candidates: Path,
    params: CrossEncoderParams,
    scored: ScoringStats,
) -> Iterator[pa.Table]:
    """The table `relevance` of some queries' candidates by any searcher, piece by piece; `scored` counts along.

    `fingerprint` is the id of the ranker's. Shards of scores are kept below SLIMTOWER_CACHE, so a run that was killed
    repeats one at most. UserError for a score that is not finite, and for a candidate that the corpus lacks.
    """
    ids = list(queries)
    made_by = code_digest("steps.retrieval.rankers"), *library_versions()
    settings = (fingerprint, resolve_precision(params.precision), *made_by)
    for start in range(0, len(ids), QUERIES):
        pools = union(candidates, ids[start : start + QUERIES], DEPTH)
        rows = _pairs(pools)
        pairs = [(queries[query_id], doc_id) for query_id, doc_id in rows]
        scores, computed = _scores(ranker, settings, pairs, ingest, params)
        scored.queries += len(pools)
        scored.scores += len(rows)
        scored.shards_computed += computed
        scored.smallest = min(scored.smallest, float(scores.min(initial=math.inf)))
        scored.largest = max(scored.largest, float(scores.max(initial=-math.inf)))
        yield table_from_columns("relevance", [[row[0] for row in rows], [row[1] for row in rows], scores.tolist()])


def _pairs(pools: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    return [(query_id, doc_id) for query_id, doc_ids in pools.items() for doc_id in doc_ids]


def document_texts(ingest: Path, doc_ids: Collection[str]) -> dict[str, str]:
    """Texts of documents by id; UserError if the corpus in `ingest` lacks one."""
    texts = texts_of(ingest, doc_ids)
    check_documents(sorted(doc_ids), texts, ingest)
    return texts


def _scores(
    ranker: CrossEncoder,
    settings: Sequence[str],
    rows: list[tuple[str, str]],
    ingest: Path,
    params: CrossEncoderParams,
) -> tuple[np.ndarray, int]:
    """Scores of texts of queries with documents `(rows,)`, and how many shards of them were not kept before."""
    named = {doc_id for _, doc_id in rows}
    row_of = {doc_id: row for row, (doc_id,) in enumerate(corpus_columns(ingest, ["doc_id"])) if doc_id in named}
    check_documents(sorted(named), row_of, ingest)
    position_of = {doc_id: position for position, doc_id in enumerate(row_of)}
    texts = CorpusTexts(ingest, np.array([*row_of.values()], dtype=np.int64))
    digests = np.array([np.frombuffer(text_key(text), dtype=np.uint8) for text in texts]).reshape(-1, 32)
    shards = ScoreShards(settings, digests)

    def compute(queries: list[str], positions: np.ndarray) -> np.ndarray:
        text_of = copied.read(np.unique(positions))
        pairs = [(query, text_of[at]) for query, at in zip(queries, positions[:, 0].tolist(), strict=True)]
        scores = pair_scores(ranker, pairs, precision=params.precision, batch_size=params.batch_size)
        if not np.isfinite(scores).all():
            raise UserError(
                f"rank: a query and a document have the score {scores[~np.isfinite(scores)][0]}; set the ranker's"
                " precision: fp32, or another base"
            )
        return scores.reshape(-1, 1)

    parts = [np.zeros(0, dtype=np.float32)]
    starts = range(0, len(rows), SHARD)
    with TemporaryDirectory(prefix="slimtower.rank.") as scratch:
        copied = TextFile(Path(scratch) / "texts", texts)
        for start in progress(starts, len(starts), "score candidates"):
            shard = rows[start : start + SHARD]
            positions = np.array([[position_of[doc_id]] for _, doc_id in shard])
            parts.append(shards.get_or_compute(compute, [query for query, _ in shard], positions)[:, 0])
    return np.concatenate(parts), shards.computed
