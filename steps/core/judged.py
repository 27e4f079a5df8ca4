"""Judged query sets: the queries of one split of one data set that have a relevant document."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.core.tables import read_table

Searched = Callable[[int], tuple[Iterable[np.ndarray], Sequence[Sequence[str]]]]
"""Of so many hits: scores and ids by query."""
TIES_TO = 1000  # hits of a query among which equal scores are put in order


@dataclass(frozen=True)
class JudgedSet:
    """Queries with a relevant document, in the order of their ids, and `qrels[query][document] = grade` of each.

    `without_relevant`: the judged queries of which no document is relevant, id -> text and grades; for measures of
    pairs alone. A document is relevant from grade `relevant_from`. What stands below is off unless an evaluation asks:
    `satisfaction`, a second label of pairs like `qrels`; `answering`, by query id the ids of the documents that hold an
    answer; `ignore_identical_ids`, whether a query's hit of its own id is dropped, as BEIR does.
    """

    dataset: str
    split: str
    query_ids: list[str]
    texts: list[str]
    qrels: dict[str, dict[str, int]]
    without_relevant: Mapping[str, tuple[str, Mapping[str, int]]] = field(default_factory=dict)
    relevant_from: int = 1
    satisfaction: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    answering: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ignore_identical_ids: bool = False


def other_hits(
    judged: JudgedSet,
    query_ids: Sequence[str],
    search: Searched,
    k: int,
) -> tuple[list[np.ndarray], list[list[str]]]:
    """Scores and ids of up to `k` hits of each of these queries, never of its own id with `ignore_identical_ids`.

    `search(count)` returns scores and ids of `count` hits by query. Scores behind the last id are cut off.
    """
    scores, doc_ids = search(k + judged.ignore_identical_ids)
    hits: tuple[list[np.ndarray], list[list[str]]] = ([], [])
    for query, values, docs in zip(query_ids, scores, doc_ids, strict=True):
        if not judged.ignore_identical_ids:
            hits[0].append(values[: min(k, len(docs))])
            hits[1].append(list(docs[:k]))
            continue
        positions = [position for position, doc in enumerate(docs) if doc != query][:k]
        hits[0].append(values[positions])
        hits[1].append([docs[position] for position in positions])
    return hits


def tied_hits(
    judged: JudgedSet,
    query_ids: Sequence[str],
    search: Searched,
    k: int,
) -> tuple[list[np.ndarray], list[list[str]]]:
    """As `other_hits` over an exact index, and the hits behind the k-th that score as much, up to TIES_TO of a query.

    Measures order equal scores by id, as trec_eval does; an index cuts them off in an order of its own. An approximate
    index finds other hits where it is asked for more: of that one take what it serves.
    """
    if k >= TIES_TO:
        return other_hits(judged, query_ids, search, k)
    scores, doc_ids = other_hits(judged, query_ids, search, k + 1)
    tied = [len(row) > k and row[k] == row[k - 1] for row in scores]
    deep = other_hits(judged, query_ids, search, TIES_TO) if any(tied) else (scores, doc_ids)
    lengths = [int((deep[0][index] >= scores[index][k - 1]).sum()) if more else k for index, more in enumerate(tied)]
    return (
        [row[:length] for row, length in zip(deep[0], lengths, strict=True)],
        [row[:length] for row, length in zip(deep[1], lengths, strict=True)],
    )


def read_judged_sets(ingest: Path, splits: Sequence[str]) -> list[JudgedSet]:
    """The judged sets of these splits that exist, by data set, then by split; UserError when a table is missing."""
    grades: dict[tuple[str, str], dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in _rows(ingest, "qrels", splits):
        grades[row["dataset"], row["split"]][row["query_id"]][row["doc_id"]] = row["grade"]
    queries: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    without_relevant: dict[tuple[str, str], dict[str, tuple[str, Mapping[str, int]]]] = defaultdict(dict)
    for row in _rows(ingest, "queries", splits):
        key = (row["dataset"], row["split"])
        grades_of_query = grades[key].get(row["query_id"], {})
        if any(grade > 0 for grade in grades_of_query.values()):
            queries[key].append((row["query_id"], row["text"]))
        elif grades_of_query:
            without_relevant[key][row["query_id"]] = row["text"], dict(grades_of_query)
    judged_sets = []
    for dataset in sorted({dataset for dataset, _ in queries}):
        for split in splits:
            if rows := sorted(queries.get((dataset, split), ())):
                ids, texts = [query for query, _ in rows], [text for _, text in rows]
                qrels = {query: dict(grades[dataset, split][query]) for query in ids}
                judged_sets.append(
                    JudgedSet(dataset, split, ids, texts, qrels, dict(sorted(without_relevant[dataset, split].items())))
                )
    return judged_sets


def _rows(ingest: Path, name: str, splits: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a table whose split is one of these; training judgements can be many."""
    table = read_table(ingest, name)
    rows: list[dict[str, Any]] = table.filter(pc.is_in(table["split"], pa.array(splits, pa.string()))).to_pylist()
    return rows
