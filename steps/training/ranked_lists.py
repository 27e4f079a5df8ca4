"""What a cross encoder is trained on: lists of a query, one of its positives and documents that are none."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from steps.core.judged import read_judged_sets
from steps.core.texts import fold
from steps.training.documents import random_documents, texts_of
from steps.training.triplets import check_ids, draw, refused_queries


class ListKnobs(Protocol):
    """Which triplets are drawn, and how many negatives a positive gets."""

    negatives: int
    random_negatives: int
    max_triplets: int
    seed: int


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

    @property
    def negatives_per_positive(self) -> float:
        """Negatives of all lists per positive; nan without lists."""
        return sum(len(each.negatives) for each in self.chosen) / len(self.chosen) if self.chosen else math.nan

    def mostly_unused(self, limit: int) -> str | None:
        """What says that the limit they were drawn by leaves more than half of the usable triplets out, else None."""
        drawn = sum(self.by_source.values())
        usable = drawn + self.left_out["not_drawn"]
        if drawn != limit or 2 * drawn >= usable:
            return None
        return (
            f"{drawn:,} of {usable:,} usable triplets train (max_triplets); raise it where there is time for more, 0"
            " takes all"
        )


def choose_lists(triplets: pa.Table, queries: pa.Table, ingest: Path, params: ListKnobs) -> ListChoice:
    """The triplets that may train, by weight as `draw` has it, and of these the negatives of each positive.

    A list has at most `negatives` of the triplets' negatives and `random_negatives` documents of its data set. Left out
    and counted: triplets of a query that may not train (`refused_queries`) or whose negative is a positive of the query
    elsewhere, by a triplet or judgement; negatives beyond the limit, and those that read like a positive of the query;
    lists without a negative. Only texts of documents that are in a list, and of positives, are read. UserError for ids
    that the tables in `ingest` do not hold.
    """
    asked = {
        query_id: (text, dataset)
        for query_id, text, dataset in zip(*_columns(queries, "query_id", "text", "dataset"), strict=True)
    }
    check_ids("query_id", triplets["query_id"].to_pylist(), asked, ingest)
    refused = refused_queries(queries)
    left_out = Counter(dict.fromkeys(("not_a_train_query", "evaluation_query", "negative_is_positive"), 0))
    positives: dict[str, set[str]] = {}
    rows = list(zip(*_columns(triplets, "query_id", "positive_id", "negative_id", "source", "weight"), strict=True))
    for query_id, positive, *_ in rows:
        positives.setdefault(query_id, set()).add(positive)
    for judged in read_judged_sets(ingest, ["train"]):
        for query_id in judged.qrels.keys() & positives.keys():
            positives[query_id] |= {doc_id for doc_id, grade in judged.qrels[query_id].items() if grade > 0}
    usable = []
    for row in rows:
        query_id, _, negative, *_ = row
        if reason := refused.get(query_id, "negative_is_positive" if negative in positives[query_id] else ""):
            left_out[reason] += 1
        else:
            usable.append(row)
    places, turns = draw(np.array([row[-1] for row in usable]), params.max_triplets, params.seed)
    drawn = [usable[row] for row in places]
    left_out["not_drawn"] = len(usable) - len(drawn)

    hard: dict[tuple[str, str], list[str]] = {}
    turn: dict[tuple[str, str], tuple[float, float]] = {}
    chances = zip(turns.chances.tolist(), turns.luck.tolist(), strict=True)
    for (query_id, positive, negative, *_), own in zip(drawn, chances, strict=True):
        hard.setdefault((query_id, positive), []).append(negative)
        turn[query_id, positive] = max(turn.get((query_id, positive), own), own)
    wanted = Counter(asked[query_id][1] for query_id, _ in hard)
    counts = {dataset: lists * params.random_negatives for dataset, lists in wanted.items()}
    easy = {dataset: iter(ids) for dataset, ids in random_documents(ingest, counts, params.seed).items()}
    lists: dict[tuple[str, str], list[str]] = {}
    for (query_id, positive), negatives in hard.items():
        own = list(dict.fromkeys(negatives))
        left_out["beyond_limit"] += len(own[params.negatives :])
        more = [next(easy[asked[query_id][1]]) for _ in range(params.random_negatives)]
        lists[query_id, positive] = list(dict.fromkeys([*own[: params.negatives], *more]))

    named = {doc for (query_id, _), negatives in lists.items() for doc in (*positives[query_id], *negatives)}
    texts = texts_of(ingest, named)
    check_ids("document", sorted(named), texts, ingest)
    chosen = []
    for (query_id, positive), negatives in lists.items():
        relevant = {fold(texts[doc_id]) for doc_id in positives[query_id]}
        apart = tuple(texts[doc_id] for doc_id in negatives if fold(texts[doc_id]) not in relevant)
        left_out["negative_reads_like_positive"] += len(negatives) - len(apart)
        left_out["list_without_negative"] += not apart
        if apart:
            chosen.append(RankedList(asked[query_id][0], texts[positive], apart, *turn[query_id, positive]))
    return ListChoice(chosen, dict(sorted(Counter(row[3] for row in drawn).items())), dict(left_out))


def _columns(table: pa.Table, *names: str) -> Iterable[list]:
    return (table[name].to_pylist() for name in names)
