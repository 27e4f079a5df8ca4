"""What training and log say of the test queries: texts that hold their words, and how often they were asked."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from steps.core.tables import table_path
from steps.core.texts import words

_ROWS = 65_536  # in memory at once


def training_texts(ingest: Path, embed: Path, generate: Path) -> Iterator[str]:
    """The texts that students may be aligned on: of documents, unlabelled, generated and training queries, each once.

    Of the last two some may be alignment texts and some not (`embed.max_part_texts`): where some are, all are read. A
    part that `embed.parts` leaves out trains no student, and is not read.
    """
    partly_aligned, parts = pa.array(["generated_queries", "train_queries"], pa.string()), set[str]()
    for batch in _batches(table_path(embed, "alignment_texts"), ["text", "part"]):
        parts.update(batch["part"].unique().to_pylist())
        yield from batch.filter(pc.invert(pc.is_in(batch["part"], partly_aligned)))["text"].to_pylist()
    if "generated_queries" in parts:
        for batch in _batches(table_path(generate, "generated_queries"), ["text"]):
            yield from batch["text"].to_pylist()
    if "train_queries" in parts:
        for batch in _batches(table_path(ingest, "queries"), ["text", "split"]):
            yield from batch.filter(pc.equal(batch["split"], "train"))["text"].to_pylist()


def count_words(vocabulary: set[str], texts: Iterable[str]) -> dict[str, int]:
    """How many texts hold each of the wanted words; 0 of a word that none does."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(vocabulary.intersection(words(text)))
    return {word: counts[word] for word in vocabulary}


def count_searches(ingest: Path, query_ids: Iterable[str]) -> dict[str, int]:
    """Sessions of the log in which each of these queries was asked; {} where none was, or without a log."""
    path, ids = ingest / "impressions.parquet", pa.array(sorted(query_ids), pa.string())
    if not path.is_file():
        return {}
    searches: set[tuple[str, str]] = set()
    for batch in _batches(table_path(ingest, "impressions"), ["query_id", "session_id"]):
        rows = batch.filter(pc.is_in(batch["query_id"], ids))
        searches.update(zip(*(rows[name].to_pylist() for name in ("query_id", "session_id")), strict=True))
    return dict(Counter(query for query, _ in searches))


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as table:
        yield from table.iter_batches(_ROWS, columns=columns)
