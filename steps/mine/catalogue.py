"""Keys of the queries and documents of a log, and sketches that tell how similar two documents are."""

import re
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa

from slimtower.common.document_texts import FIELDS
from slimtower.common.errors import UserError
from slimtower.common.unicode_norm import words_in
from steps.core.texts import fold
from steps.mine.engine import Engine

_PRIME = 2**31 - 1  # products of two remainders stay below 2**62: no engine overflows
SEED = 7  # of the draws: negatives, the report's samples, and the pairs that propensities are estimated from
SKETCH = [f"sketch_{number}" for number in range(16)]
NEAR_DUPLICATE = 7  # of the 16 minima equal: 94 % of the pairs whose shingles overlap by 0.6, 3 % of those by 0.2

_QUERIES = pa.schema(
    [("query", pa.int64()), ("text_key", pa.int64())]
    + [(name, pa.string()) for name in ("query_id", "dataset", "split", "text")]
)
_DOCUMENTS = pa.schema(
    [("doc", pa.int64()), ("doc_id", pa.string()), ("text_key", pa.int64())] + [(name, pa.int32()) for name in SKETCH]
)
_SHINGLE = 3  # words
_WORD = re.compile(r"\S+")  # of folded text
_TELLS_APART = 7  # words of content from which on it is compared without title and topic


def key(text: str) -> int:
    """63-bit key of a text, not negative."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


_MULTIPLIERS = np.array([key(f"multiplier {number}") | 1 for number in range(len(SKETCH))], dtype=np.uint64)


def mixed(seed: int, first: ir.IntegerColumn, second: ir.IntegerColumn) -> ir.IntegerColumn:
    """A pseudo-random whole number in [0, 2**31 - 1) for each pair of keys, equal on every engine."""
    start = key(f"mixed {seed}")
    factor_1, factor_2, factor_3 = (start // 2**shift % _PRIME for shift in (0, 16, 32))
    linear = (
        (first % _PRIME) * ibis.literal(factor_1, "int64") + (second % _PRIME) * ibis.literal(factor_2, "int64")
    ) % _PRIME
    return ((linear * linear) % _PRIME * ibis.literal(factor_3, "int64") + linear) % _PRIME


def keyed_queries(engine: Engine, queries: ir.Table) -> ir.Table:
    """(query, text_key, query_id, dataset, split, text); equal text keys mean equal folded texts."""
    table = engine.map_batches(queries, _key_queries, _QUERIES, "queries")
    return _distinct(engine, table, "query", "query_id")


def keyed_documents(engine: Engine, corpus: ir.Table) -> ir.Table:
    """(doc, doc_id, text_key, sketch_0...): equal text keys mean equal folded texts, equal minima similar ones.

    Titles and topics are left out, because copies of one text often differ in these alone; but content of few words, as
    products have, tells nothing apart without them.
    """
    chosen = corpus.select("doc_id", *FIELDS)
    return _distinct(engine, engine.map_batches(chosen, _key_documents, _DOCUMENTS, "documents"), "doc", "doc_id")


def keyed_rows(
    engine: Engine, table: ir.Table, queries: ir.Table, documents: ir.Table, columns: list[str]
) -> tuple[ir.Table, dict[str, int]]:
    """(query, doc, dataset, reason, and `columns`) of a table, and how many rows do not count, by reason.

    `reason` is empty for what counts: known documents of training queries.
    """
    whose = queries.select("query", "query_id", "split", "dataset")
    joined = table.left_join(whose, "query_id").select(table, "query", "split", "dataset")
    joined = joined.left_join(documents.select("doc", "doc_id"), "doc_id").select(joined, "doc")
    split = joined.split.fill_null("unlabelled")  # the table of queries has only those of a split
    reason = ibis.cases((split != "train", split + "_query"), (joined.doc.isnull(), "unknown_document"), else_="")
    rows = engine.keep(joined.select("query", "doc", "dataset", *columns, reason=reason))
    return rows, {reason: count for reason, count in engine.counts(rows, "reason").items() if reason}


def sketches(texts: list[str]) -> np.ndarray:
    """Min-wise hashes of the three-word shingles of folded texts: int32 (len(texts), 16), zeros for an empty text.

    Of scripts without spaces between words, pairs of characters are the words. The share of equal minima estimates the
    Jaccard similarity of two texts' shingles (Broder 1997).
    """
    lengths: list[int] = []
    hashes: list[int] = []
    for text in texts:
        words = words_in(text, _WORD)
        lengths.append(len(words))
        hashes += [_word_hash(word) for word in words]
    words_of = np.array(hashes, dtype=np.uint64)
    shingles = words_of.copy()
    ends = np.repeat(np.cumsum(lengths), lengths)
    for step in range(1, _SHINGLE):  # a text's last words make shorter shingles, so that short texts have some
        following = np.zeros_like(words_of)
        following[:-step] = words_of[step:]
        inside = np.arange(len(words_of)) + step < ends
        shingles = np.where(inside, shingles * np.uint64(1_000_003) + following, shingles)
    result = np.zeros((len(texts), len(SKETCH)), dtype=np.int32)
    filled = np.array(lengths, dtype=np.int64) > 0
    if not filled.any():
        return result
    starts = (np.cumsum(lengths) - np.array(lengths))[filled].astype(np.int64)
    for number, multiplier in enumerate(_MULTIPLIERS):
        scrambled = (shingles * multiplier) ^ (shingles * multiplier >> np.uint64(29))
        scrambled = (scrambled * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
        result[filled, number] = np.minimum.reduceat(scrambled, starts).astype(np.int32)
    return result


@lru_cache(maxsize=2**20)
def _word_hash(word: str) -> int:
    return crc32(word.encode()) + 1


def _key_queries(batch: pa.RecordBatch) -> pa.Table:
    columns = {name: batch.column(name) for name in ("query_id", "dataset", "split", "text")}
    keys = [key(query_id) for query_id in columns["query_id"].to_pylist()]
    texts = [key(fold(text)) for text in columns["text"].to_pylist()]
    return pa.table([pa.array(keys, pa.int64()), pa.array(texts, pa.int64()), *columns.values()], schema=_QUERIES)


def _key_documents(batch: pa.RecordBatch) -> pa.Table:
    ids, *fields = (batch.column(name).to_pylist() for name in ("doc_id", *FIELDS))
    texts = [_told_apart(fold(content), title, topic) for title, topic, content in zip(*fields, strict=True)]
    keys = [pa.array(map(key, column), pa.int64()) for column in (ids, texts)]
    minima = [pa.array(column) for column in sketches(texts).T]
    return pa.table([keys[0], batch.column("doc_id"), keys[1], *minima], schema=_DOCUMENTS)


def _told_apart(content: str, title: str, topic: str) -> str:
    return content if len(words_in(content, _WORD)) >= _TELLS_APART else fold(f"{title} {topic} {content}")


def _distinct(engine: Engine, table: ir.Table, name: str, label: str) -> ir.Table:
    rows, keys = engine.number(table.count()), engine.number(table[name].nunique())
    if rows != keys:
        raise UserError(
            f"{label}: {rows - keys} of {rows} ids occur twice or share a key; make them distinct in ingest"
        )
    return table
