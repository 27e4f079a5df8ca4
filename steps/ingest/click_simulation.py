"""SIMULATED search sessions for the embedded default: no person clicked any of these results.

Each session shows the BM25 results of a train query, the relevant documents inserted at random ranks where BM25
missed them. Clicks follow the position-based model: rank r is examined with probability (1/r)^eta (eta =
PROPENSITY_EXPONENT), and an examined result is clicked with a probability that depends on its relevance.
"""

from collections.abc import Collection, Mapping, Sequence

import bm25s
import numpy as np
import pyarrow as pa

from slimtower.common.document_texts import DocumentTemplate
from steps.core.progress import progress
from steps.core.tables import SCHEMAS
from steps.core.texts import words
from steps.ingest.source import Document, Query

FIRST_SESSION = 1_735_689_600  # 2025-01-01 00:00:00 UTC
SECONDS_BETWEEN_SESSIONS = 60
SESSIONS_PER_QUERY = 5
RESULTS_PER_SESSION = 10
PROPENSITY_EXPONENT = 1.0  # a result at rank r is examined with probability (1/r) to the power of this
CLICK_IF_RELEVANT = 0.9  # probability of a click on an examined relevant result
CLICK_IF_NOT = 0.05  # and on an examined irrelevant one


def simulate_sessions(
    queries: Sequence[Query],
    relevant: Mapping[str, Collection[str]],
    documents: Sequence[Document],
    seed: int,
    template: DocumentTemplate,
) -> pa.Table:
    """The table `impressions` of simulated sessions over the train queries among `queries`.

    Every query gets SESSIONS_PER_QUERY sessions, in rounds of a seeded order, one session a minute.
    """
    train = [query for query in queries if query.split == "train"]
    generator = np.random.default_rng([seed, 0])
    results = min(RESULTS_PER_SESSION, len(documents))
    row_of = {document.doc_id: row for row, document in enumerate(documents)}
    relevant_rows = [sorted(row_of[doc_id] for doc_id in relevant[query.query_id]) for query in train]
    ranked = bm25_results([query.text for query in train], documents, results, template)

    rankings: list[np.ndarray] = []
    whose: list[int] = []
    for _ in range(SESSIONS_PER_QUERY):
        for at in generator.permutation(len(train)).tolist():
            rankings.append(with_relevant(ranked[at], relevant_rows[at], generator))
            whose.append(at)
    if not rankings:
        return SCHEMAS["impressions"].empty_table()

    grid = np.stack(rankings)  # (sessions, results)
    good = np.stack([np.isin(row, relevant_rows[at]) for row, at in zip(grid, whose, strict=True)])
    examined = (1.0 / np.arange(1, results + 1)) ** PROPENSITY_EXPONENT
    clicked = generator.random(grid.shape) < examined * np.where(good, CLICK_IF_RELEVANT, CLICK_IF_NOT)
    doc_ids = np.array([document.doc_id for document in documents], dtype=object)
    sessions = len(grid)
    session_ids = np.array([f"{train[0].dataset}/s{at:07d}" for at in range(sessions)], dtype=object)
    query_ids = np.array([train[at].query_id for at in whose], dtype=object)
    times = FIRST_SESSION + SECONDS_BETWEEN_SESSIONS * np.arange(sessions, dtype=np.int64)
    columns = {
        "session_id": np.repeat(session_ids, results),
        "query_id": np.repeat(query_ids, results),
        "doc_id": doc_ids[grid.ravel()],
        "rank": np.tile(np.arange(1, results + 1, dtype=np.int32), sessions),
        "clicked": clicked.ravel(),
        "timestamp": np.repeat(times, results),
    }
    return pa.table(columns, schema=SCHEMAS["impressions"])


def with_relevant(ranked: np.ndarray, relevant: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """The results with every missing relevant row inserted at a random rank; the last irrelevant ones make room.

    Args: ranked: int (results,). Returns int (results,).
    """
    size = len(ranked)
    missing = [row for row in relevant if row not in ranked][:size]
    if not missing:
        return ranked
    rows: list[int] = ranked.tolist()
    for row in missing:
        last = next((at for at in range(size - 1, -1, -1) if rows[at] not in relevant), None)
        if last is None:
            break
        del rows[last]
        rows.insert(int(generator.integers(size)), row)
    return np.array(rows, dtype=ranked.dtype)


def bm25_results(
    texts: Sequence[str], documents: Sequence[Document], results: int, template: DocumentTemplate
) -> np.ndarray:
    """Rows of the best documents per text by BM25, ties by row: int (texts, results)."""
    index = bm25s.BM25()
    index.index([words(template.text(d.title, d.topic, d.content)) for d in documents], show_progress=False)
    ranked = np.empty((len(texts), results), dtype=np.int64)
    for at, text in enumerate(progress(texts, len(texts), "simulated sessions")):
        terms = [word for word in words(text) if word in index.vocab_dict]
        scores = index.get_scores(terms) if terms else np.zeros(len(documents))
        ranked[at] = np.argsort(-scores, kind="stable")[:results]
    return ranked
