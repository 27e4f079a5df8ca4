"""A search log of any size for the mining benchmark: seeded, written in batches, all of it made up.

Terms follow Zipf's law with exponent 1 over a vocabulary that grows with the log like Heaps' law, V = 0.06 n^0.85;
factor and exponent were chosen so that a query has 6 to 8 click associations before any cap (importance by idf,
threshold 0.10, two top terms) whether the log holds 20,000, 100,000 or 1,000,000 queries. Every text occurs once: with
repetitions, the short queries of common words would associate with a constant share of the log.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.files import staged_file
from steps.core.tables import SCHEMAS

DATASET = "zipf"
LEAST_TERMS, MOST_TERMS = 2, 8
RESULTS = 4
FIRST_SESSION = 1_735_689_600  # 2025-01-01 00:00:00 UTC; one session a second
BATCH = 100_000  # queries drawn at a time
DEV_FROM, TEST_FROM = 0.99, 0.995  # shares of the queries, in order of time: test data are later than training data
CLICK_IF_RELEVANT, CLICK_IF_NOT = 0.66, 0.10  # each half of the documents: three in five queries click something


class Shape(NamedTuple):
    """Sizes that follow from the number of queries."""

    vocabulary: int
    documents_per_term: int
    """Document d is about term d mod vocabulary; at least RESULTS documents a term."""

    @property
    def documents(self) -> int:
        return self.vocabulary * self.documents_per_term


def shape(queries: int) -> Shape:
    """Vocabulary by Heaps' law, and about one document for four queries."""
    vocabulary = max(64, round(0.06 * queries**0.85))
    return Shape(vocabulary, max(RESULTS, round(queries / 4 / vocabulary)))


def write_log(folder: Path, queries: int, seed: int) -> None:
    """Write queries, corpus and impressions of a log, a session a query; equal arguments give equal tables."""
    sizes = shape(queries)
    relevant = np.random.default_rng([seed, 0]).random(sizes.documents) < 0.5
    clicks = np.random.default_rng([seed, 2])
    terms = _names("t", np.arange(sizes.vocabulary))
    with ExitStack() as stack:
        writers = {name: _writer(stack, folder, name) for name in ("corpus", "queries", "impressions")}
        for first in range(0, sizes.documents, BATCH):
            numbers = np.arange(first, min(first + BATCH, sizes.documents))
            writers["corpus"].write_table(_corpus(numbers, terms))
        first = 0
        for query_terms in distinct_queries(queries, sizes.vocabulary, np.random.default_rng([seed, 1])):
            numbers = np.arange(first, first + len(query_terms))
            writers["queries"].write_table(_queries(numbers, query_terms, terms, queries))
            writers["impressions"].write_table(_impressions(numbers, results(query_terms, sizes), relevant, clicks))
            first += len(query_terms)


def distinct_queries(queries: int, vocabulary: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Batches of queries, no two of equal terms: int64 (batch, 8), term numbers descending (rarest first), then -1."""
    cumulative = np.cumsum(1 / np.arange(1, vocabulary + 1))
    cumulative /= cumulative[-1]
    seen = np.empty(0, np.uint64)
    remaining = queries
    while remaining:
        term_sets = _term_sets(BATCH, cumulative, generator)
        keys, rows = np.unique(_keys(term_sets), return_index=True)
        new = ~_contains(seen, keys)
        keys, rows = keys[new], rows[new]
        if len(rows) > remaining:
            last = np.partition(rows, remaining - 1)[remaining - 1]
            keys, rows = keys[rows <= last], rows[rows <= last]
        seen = np.insert(seen, np.searchsorted(seen, keys), keys)
        remaining -= len(rows)
        yield term_sets[np.sort(rows)]


def results(query_terms: np.ndarray, sizes: Shape) -> np.ndarray:
    """Documents shown, int64 (batch, RESULTS): about the query's rarest term, chosen by its second rarest."""
    rarest, second = query_terms[:, :1], query_terms[:, 1:2]
    position = (second * 7919 + np.arange(RESULTS)) % sizes.documents_per_term
    return rarest + sizes.vocabulary * position


def _term_sets(count: int, cumulative: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Sets of 2 to 8 terms by Zipf's law, (count, 8): descending, then -1. A term drawn twice is drawn again."""
    sizes = generator.integers(LEAST_TERMS, MOST_TERMS + 1, count)
    sets = np.searchsorted(cumulative, generator.random((count, MOST_TERMS)), side="right")
    sets[np.arange(MOST_TERMS) >= sizes[:, None]] = -1
    rows = np.arange(count)
    while len(rows):
        candidates = -np.sort(-sets[rows], axis=1)
        repeated = np.zeros(candidates.shape, bool)
        repeated[:, 1:] = (candidates[:, 1:] == candidates[:, :-1]) & (candidates[:, 1:] >= 0)
        candidates[repeated] = np.searchsorted(cumulative, generator.random(int(repeated.sum())), side="right")
        sets[rows] = candidates
        rows = rows[repeated.any(axis=1)]
    return sets


def _keys(sets: np.ndarray) -> np.ndarray:
    """A 64-bit digest of each set, uint64 (count,)."""
    keys = np.zeros(len(sets), np.uint64)
    for column in sets.T:
        keys = (keys ^ (column + 2).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _contains(seen: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which keys are among the sorted `seen`."""
    if not len(seen):
        return np.zeros(len(keys), bool)
    return np.asarray(seen[np.minimum(np.searchsorted(seen, keys), len(seen) - 1)] == keys)


def _names(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pc.cast(pa.array(numbers), pa.string()), "")


def _writer(stack: ExitStack, folder: Path, name: str) -> pq.ParquetWriter:
    path = stack.enter_context(staged_file(folder / f"{name}.parquet"))
    repeating = [column for column in SCHEMAS[name].names if column in {"dataset", "topic", "split", "rank", "clicked"}]
    return stack.enter_context(
        pq.ParquetWriter(path, SCHEMAS[name], compression="zstd", compression_level=1, use_dictionary=repeating)
    )


def _corpus(numbers: np.ndarray, terms: pa.Array) -> pa.Table:
    """Documents whose content is the term they are about and a word of their own."""
    titles, topics = _names("d", numbers), terms.take(pa.array(numbers % len(terms)))
    columns = {
        "doc_id": _names(f"{DATASET}/d", numbers),
        "dataset": pa.repeat(DATASET, len(numbers)),
        "title": titles,
        "topic": topics,
        "content": pc.binary_join_element_wise(topics, titles, " "),
    }
    return pa.table(columns, schema=SCHEMAS["corpus"])


def _queries(numbers: np.ndarray, query_terms: np.ndarray, terms: pa.Array, total: int) -> pa.Table:
    """Queries; a dev or test query holds one word more, which no other query holds."""
    present = query_terms >= 0
    starts = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    texts = pc.binary_join(pa.ListArray.from_arrays(starts, terms.take(pa.array(query_terms[present]))), " ")
    split = np.searchsorted([int(DEV_FROM * total), int(TEST_FROM * total)], numbers, side="right")
    own_word = pc.binary_join_element_wise(texts, _names("only", numbers), " ")
    columns = {
        "query_id": _names(f"{DATASET}/q", numbers),
        "dataset": pa.repeat(DATASET, len(numbers)),
        "text": pc.if_else(pa.array(split > 0), own_word, texts),
        "split": pa.array(["train", "dev", "test"]).take(pa.array(split)),
    }
    return pa.table(columns, schema=SCHEMAS["queries"])


def _impressions(
    numbers: np.ndarray, documents: np.ndarray, relevant: np.ndarray, generator: np.random.Generator
) -> pa.Table:
    """One session a query; rank r is examined with probability 1/r, an examined result clicked by its relevance."""
    ranks = np.arange(1, RESULTS + 1, dtype=np.int32)
    clicked = generator.random(documents.shape) < np.where(relevant[documents], CLICK_IF_RELEVANT, CLICK_IF_NOT) / ranks
    whose = pa.array(np.repeat(np.arange(len(numbers)), RESULTS))
    columns = {
        "session_id": _names(f"{DATASET}/s", numbers).take(whose),
        "query_id": _names(f"{DATASET}/q", numbers).take(whose),
        "doc_id": _names(f"{DATASET}/d", documents.ravel()),
        "rank": np.tile(ranks, len(numbers)),
        "clicked": clicked.ravel(),
        "timestamp": FIRST_SESSION + np.repeat(numbers, RESULTS),
    }
    return pa.table(columns, schema=SCHEMAS["impressions"])
