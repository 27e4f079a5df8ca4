"""What a cross encoder is trained on: lists of a query, one of its positives and documents that are none."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from steps.core.judged import read_judged_sets
from steps.core.texts import fold
from steps.training.documents import random_documents, texts_of
from steps.training.params import RankerTraining
from steps.training.triplets import check_ids, draw_triplets, factorize, refused_queries

RANDOM_NEGATIVES = 1  # documents of the same data set besides, taken for negatives


@dataclass(frozen=True)
class RankedList:
    """A training query, a document that is relevant to it, and some that are taken not to be; as texts."""

    query: str
    positive: str
    negatives: tuple[str, ...]
    chance: float = 1.0  # of its `Turns`, with `luck`: those of its most likely triplet
    luck: float = 0.0


@dataclass(frozen=True)
class ListChoice:
    """The lists to train on, how many triplets each source gave, and what was left out for which reason."""

    chosen: list[RankedList]
    by_source: dict[str, int]
    left_out: dict[str, int]
    hard_negatives: float = math.nan  # of a list, on average

    @property
    def negatives_per_positive(self) -> float:
        """Negatives of all lists per positive; nan without lists."""
        negatives = sum(len(ranked_list.negatives) for ranked_list in self.chosen)
        return negatives / len(self.chosen) if self.chosen else math.nan

    def mostly_unused(self, limit: int) -> str | None:
        """What says that the limit they were drawn by leaves more than half of the usable triplets out, else None."""
        used = sum(self.by_source.values())
        usable = used + self.left_out["not_drawn"]
        if used != limit or 2 * used >= usable:
            return None
        return (
            f"{used:,} of {usable:,} usable triplets train (max_triplets); raise it where there is time for more, 0"
            " takes all"
        )

    def fewer_negatives(self, requested: int) -> str | None:
        """What says that lists hold, to a tenth, fewer hard negatives than were asked for, else None."""
        if not round(self.hard_negatives, 1) < requested:  # nan where there are none
            return None
        return (
            f"lists hold {self.hard_negatives:.1f} hard negatives on average, fewer than the {requested} asked for"
            " (negatives); for more raise mine.negatives_per_positive"
        )


def choose_lists(triplets: pa.Table, queries: pa.Table, ingest: Path, params: RankerTraining) -> ListChoice:
    """The triplets that may train, by weight as `draw` has it, and of these the negatives of each positive.

    A triplet's weight is multiplied by that of its source. A list has at most `negatives` of the triplets' negatives
    and RANDOM_NEGATIVES documents of its data set. Left out and counted: a source of weight 0; triplets of a query
    that may not train (`refused_queries`) or whose negative is a positive of the query elsewhere, by a triplet or
    judgement; negatives beyond the limit, and those that read like a positive of the query; lists without a negative.
    Only texts of documents that are in a list, and of positives, are read, and triplets that are not drawn are numbers.
    UserError for ids that the tables in `ingest` do not hold.
    """
    query_ids, query_texts, datasets = (queries[name].to_pylist() for name in ("query_id", "text", "dataset"))
    queries_by_id = dict(zip(query_ids, zip(query_texts, datasets, strict=True), strict=True))
    check_ids("query_id", triplets["query_id"].unique().to_pylist(), queries_by_id, ingest)
    judged = {
        query_id: {doc_id for doc_id, grade in grades.items() if grade > 0}
        for judged_set in read_judged_sets(ingest, ["train"])
        for query_id, grades in judged_set.qrels.items()
    }
    hard, turn, positives, by_source, left_out = _draw_triplets(triplets, refused_queries(queries), judged, params)
    list_counts = Counter(queries_by_id[query_id][1] for query_id, _ in hard)
    counts = {dataset: lists * RANDOM_NEGATIVES for dataset, lists in list_counts.items()}
    easy = {dataset: iter(ids) for dataset, ids in random_documents(ingest, counts, params.seed).items()}
    lists: dict[tuple[str, str], list[str]] = {}
    for (query_id, positive), negatives in hard.items():
        hard_ids = list(dict.fromkeys(negatives))
        left_out["beyond_limit"] += len(hard_ids[params.negatives :])
        more = [next(easy[queries_by_id[query_id][1]]) for _ in range(RANDOM_NEGATIVES)]
        lists[query_id, positive] = list(dict.fromkeys([*hard_ids[: params.negatives], *more]))

    named = {doc for (query_id, _), negatives in lists.items() for doc in (*positives[query_id], *negatives)}
    texts = texts_of(ingest, named)
    check_ids("document", sorted(named), texts, ingest)
    chosen, hard_count = [], 0
    for (query_id, positive), negatives in lists.items():
        relevant = {fold(texts[doc_id]) for doc_id in positives[query_id]}
        doc_ids = [doc_id for doc_id in negatives if fold(texts[doc_id]) not in relevant]
        hard_ids = negatives[: min(params.negatives, len(set(hard[query_id, positive])))]
        hard_count += len(set(doc_ids) & set(hard_ids))
        negative_texts = tuple(texts[doc_id] for doc_id in doc_ids)
        left_out["negative_reads_like_positive"] += len(negatives) - len(negative_texts)
        left_out["list_without_negative"] += not negative_texts
        if negative_texts:
            chosen.append(
                RankedList(queries_by_id[query_id][0], texts[positive], negative_texts, *turn[query_id, positive])
            )
    average = hard_count / len(chosen) if chosen else math.nan
    return ListChoice(chosen, dict(sorted(by_source.items())), dict(left_out), average)


class _TripletDraw(NamedTuple):
    """Triplets that may train, by query and positive, with counts of all."""

    hard: dict[tuple[str, str], list[str]]  # negatives
    turn: dict[tuple[str, str], tuple[float, float]]  # chance and luck of the likeliest
    positives: dict[str, set[str]]  # of each of their queries, by any triplet or judgement
    by_source: Counter[str]
    left_out: Counter[str]


def _draw_triplets(
    triplets: pa.Table, refused: Mapping[str, str], judged: Mapping[str, set[str]], params: RankerTraining
) -> _TripletDraw:
    """Draw of the triplets that may train. A log has many: but for the drawn ones they are numbers."""
    query_ids, query = factorize(triplets["query_id"])
    sources, source = factorize(triplets["source"])
    both = [*triplets["positive_id"].chunks, *triplets["negative_id"].chunks]
    doc_ids, document = factorize(pa.chunked_array(both, pa.string()))
    positive, negative = document[: len(triplets)], document[len(triplets) :]
    positive_keys = np.unique(np.concatenate([query * len(doc_ids) + positive, _keys(judged, query_ids, doc_ids)]))
    listed = "negative_is_positive", np.isin(query * len(doc_ids) + negative, positive_keys)
    rows, turns, left_out = draw_triplets(triplets, (query_ids, query), (sources, source), refused, listed, params)
    positives: dict[str, set[str]] = {}
    for key in positive_keys[np.isin(positive_keys // max(1, len(doc_ids)), query[rows])].tolist():
        query_id = query_ids[key // len(doc_ids)]
        positives.setdefault(query_id, set(judged.get(query_id, ()))).add(doc_ids[key % len(doc_ids)])
    hard: dict[tuple[str, str], list[str]] = {}
    turn: dict[tuple[str, str], tuple[float, float]] = {}
    for row, chance, luck in zip(rows.tolist(), turns.chances.tolist(), turns.luck.tolist(), strict=True):
        pair = query_ids[query[row]], doc_ids[positive[row]]
        hard.setdefault(pair, []).append(doc_ids[negative[row]])
        turn[pair] = max(turn.get(pair, (0.0, 0.0)), (chance, luck))
    by_source = Counter(sources[code] for code in source[rows].tolist())
    return _TripletDraw(hard, turn, positives, by_source, Counter(left_out))


def _keys(judged: Mapping[str, set[str]], query_ids: list[str], doc_ids: list[str]) -> np.ndarray:
    """Each judged document of each query, where triplets name both, as one number."""
    position_of = {doc_id: number for number, doc_id in enumerate(doc_ids)}
    keys = [
        number * len(doc_ids) + position_of[doc_id]
        for number, query_id in enumerate(query_ids)
        for doc_id in judged.get(query_id, ())
        if doc_id in position_of
    ]
    return np.array(keys, dtype=np.int64)
