"""Documents that are known to answer training queries: mined positives and judgements."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.core.corpus import corpus_columns
from steps.core.tables import read_table
from steps.core.texts import fold

_BATCH = 16_384  # queries in memory at once


def mined_and_judged(
    triplets: pa.Table, ingest: Path, query_ids: Collection[str] | None = None
) -> Iterator[tuple[str, str]]:
    """(query_id, doc_id) of the triplets' positives and of what was judged relevant to training queries; of some."""
    qrels = read_table(ingest, "qrels").filter((pc.field("split") == "train") & (pc.field("grade") > 0))
    for table, doc_id in ((triplets, "positive_id"), (qrels, "doc_id")):
        if query_ids is not None:
            table = table.filter(pc.field("query_id").isin(pa.array(query_ids, pa.string())))
        for batch in table.select(["query_id", doc_id]).to_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def positive_rows(
    ingest: Path, mine: Path, texts: pa.Table, sources: Collection[str] | None = None
) -> dict[int, np.ndarray]:
    """Document rows, ascending, of each training query among the alignment texts, by text row.

    `mine` holds the triplets, of which those of `sources` count, or all.
    """
    train = read_table(ingest, "queries").filter(pc.field("split") == "train").select(["query_id", "text"])
    aligned = texts.filter(pc.field("part") == "train_queries")["source_id"]
    wanted = set(map(fold, train.filter(pc.is_in(train["query_id"], aligned.combine_chunks()))["text"].to_pylist()))
    rows = (row for batch in train.to_batches(_BATCH) for row in zip(*(c.to_pylist() for c in batch), strict=True))
    queries = {query_id: text for query_id, text in rows if fold(text) in wanted}
    doc_ids = (doc_id for (doc_id,) in corpus_columns(ingest, ["doc_id"]))
    triplets = read_table(mine, "triplets")
    if sources is not None:
        triplets = triplets.filter(pc.field("source").isin(pa.array(sorted(sources), pa.string())))
    return positives_of(texts, queries, mined_and_judged(triplets, ingest, [*queries]), doc_ids)


def positives_of(
    texts: pa.Table, queries: Mapping[str, str], pairs: Iterable[tuple[str, str]], doc_ids: Iterable[str]
) -> dict[int, np.ndarray]:
    """Document rows, ascending, of each training query among the alignment texts, by text row.

    `queries`: query_id -> text. Those that are equal after folding are one alignment text, which has the positives of
    them all. `pairs` are (query_id, doc_id); those of unknown queries and documents are left out.
    """
    keys = {query: fold(text) for query, text in queries.items()}
    doc_ids_by_key: dict[str, set[str]] = {}
    for query, doc_id in pairs:
        if query in keys:
            doc_ids_by_key.setdefault(keys[query], set()).add(doc_id)
    named = set().union(*doc_ids_by_key.values())
    document = {doc_id: row for row, doc_id in enumerate(doc_ids) if doc_id in named}
    rows_by_key = {
        folded: sorted(document[doc_id] for doc_id in ids if doc_id in document)
        for folded, ids in doc_ids_by_key.items()
    }
    rows = enumerate(zip(texts["part"].to_pylist(), texts["source_id"].to_pylist(), strict=True))
    return {
        row: np.array(rows_by_key[keys[source]])
        for row, (part, source) in rows
        if part == "train_queries" and rows_by_key.get(keys.get(source, ""))
    }
