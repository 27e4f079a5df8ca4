"""Documents that are known to answer training queries: mined positives and judgements."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.corpus import corpus_columns
from steps.core.tables import read_table
from steps.core.texts import fold


def mined_and_judged(triplets: pa.Table, ingest: Path) -> Iterator[tuple[str, str]]:
    """(query_id, doc_id) of the triplets' positives and of what was judged relevant to training queries."""
    yield from zip(triplets["query_id"].to_pylist(), triplets["positive_id"].to_pylist(), strict=True)
    for row in read_table(ingest, "qrels").to_pylist():
        if row["split"] == "train" and row["grade"] > 0:
            yield row["query_id"], row["doc_id"]


def positive_rows(
    ingest: Path, mine: Path, texts: pa.Table, sources: Collection[str] | None = None
) -> dict[int, np.ndarray]:
    """Document rows, ascending, of each training query among the alignment texts, by text row.

    `mine` holds the triplets, of which those of `sources` count, or all.
    """
    rows = read_table(ingest, "queries").to_pylist()
    queries = {row["query_id"]: row["text"] for row in rows if row["split"] == "train"}
    doc_ids = (doc_id for (doc_id,) in corpus_columns(ingest, ["doc_id"]))
    triplets = read_table(mine, "triplets")
    if sources is not None:
        triplets = triplets.filter(np.isin(triplets["source"].to_pylist(), list(sources)))
    return positives_of(texts, queries, mined_and_judged(triplets, ingest), doc_ids)


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
