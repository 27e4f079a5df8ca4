"""Which mined triplets train the teacher, and as which texts."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.core.corpus import texts_of
from steps.core.positives import mined_and_judged
from steps.core.tables import table_path
from steps.core.texts import fold
from steps.training.params import TripletTraining
from steps.training.triplets import Turns, check_ids, draw_triplets, factorize, refused_queries


@dataclass(frozen=True)
class TextTriplet:
    """A training query, a document to bring near and one to push away, with the source that mined them."""

    query: str
    positive: str
    negative: str
    source: str
    positive_id: str
    negative_id: str
    dataset: str  # of the query
    chance: float = 1.0  # of its `Turns`, with `luck`
    luck: float = 0.0


def turns_of(triplets: Sequence[TextTriplet]) -> Turns:
    return Turns(np.array([triplet.chance for triplet in triplets]), np.array([triplet.luck for triplet in triplets]))


@dataclass(frozen=True)
class TripletChoice:
    """The triplets that may train, by turns, and how many were left out for which reason."""

    chosen: list[TextTriplet]
    left_out: dict[str, int]

    def facts(self, epochs: int) -> dict[str, Any]:
        """What a training of so many epochs reports of them."""
        turns = turns_of(self.chosen)
        return {
            "triplets": len(self.chosen),
            "triplets_an_epoch": len(turns.rows(0)),
            "triplets_used": turns.used(epochs),
            "by_source": self.by_source,
            "left_out": self.left_out,
        }

    @property
    def by_source(self) -> dict[str, int]:
        return dict(sorted(Counter(triplet.source for triplet in self.chosen).items()))

    def mostly_unused(self, limit: int, epochs: int) -> str | None:
        """Why more than half of the usable triplets do not train in an epoch, else None; `limit` chose them."""
        usable, turns = len(self.chosen) + self.left_out["not_drawn"], turns_of(self.chosen)
        count = len(turns.rows(0))
        if 2 * count >= usable:
            return None
        if turns.every and len(self.chosen) == limit:
            return (
                f"{count:,} of {usable:,} usable triplets train (max_triplets); raise it where there is time for more,"
                " 0 takes all"
            )
        return (
            f"{count:,} of {usable:,} usable triplets train in an epoch (each with a chance of its weight to the"
            f" largest one), {turns.used(epochs):,} of them in all {epochs}; raise epochs, or see source_weights and"
            " mine's weights"
        )

    def too_few_texts(self, batch_size: int) -> str | None:
        """Why an epoch leaves triplets out, else None: it has as many steps as if every batch were full."""
        distinct = min(len({getattr(triplet, name) for triplet in self.chosen}) for name in ("query", "positive"))
        if distinct >= (full := min(batch_size, len(self.chosen))):
            return None
        return (
            f"{distinct:,} different queries or positives fill no batch of {full:,}, where none comes twice: an epoch"
            f" sees about {distinct / full:.0%} of the triplets; lower batch_size, or raise epochs"
        )


def choose_triplets(triplets: pa.Table, queries: pa.Table, ingest: Path, params: TripletTraining) -> TripletChoice:
    """The triplets that may train, as `draw_triplets` has it, as texts.

    A negative that reads like its positive is left out, too: a near-duplicate document would be pulled and pushed at
    once. Of the corpus in `ingest` the documents that triplets name are in memory. UserError when a triplet names an id
    that it lacks.
    """
    names = zip(*(queries[name].to_pylist() for name in ("query_id", "text", "dataset")), strict=True)
    queries_by_id = {query_id: (text, dataset) for query_id, text, dataset in names}
    (query_ids, query), (sources, source) = factorize(triplets["query_id"]), factorize(triplets["source"])
    (positive_ids, positive), (negative_ids, negative) = (
        factorize(triplets[name]) for name in ("positive_id", "negative_id")
    )
    documents = texts_of(ingest, {*positive_ids, *negative_ids})
    check_ids("query_id", query_ids, queries_by_id, ingest)
    check_ids("positive_id", positive_ids, documents, ingest)
    check_ids("negative_id", negative_ids, documents, ingest)

    near, far = (
        np.array([hash(fold(documents[doc_id])) for doc_id in ids], dtype=np.int64)
        for ids in (positive_ids, negative_ids)
    )
    alike, refused = ("negative_reads_like_positive", near[positive] == far[negative]), refused_queries(queries)
    rows, turns, left_out = draw_triplets(triplets, (query_ids, query), (sources, source), refused, alike, params)
    chosen = []
    for row, chance, luck in zip(rows.tolist(), turns.chances.tolist(), turns.luck.tolist(), strict=True):
        text, dataset = queries_by_id[query_ids[query[row]]]
        near_id, far_id = positive_ids[positive[row]], negative_ids[negative[row]]
        texts = text, documents[near_id], documents[far_id]
        chosen.append(TextTriplet(*texts, sources[source[row]], near_id, far_id, dataset, chance, luck))
    return TripletChoice(chosen, left_out)


def named_documents(triplets: Sequence[TextTriplet]) -> set[str]:
    return {doc_id for triplet in triplets for doc_id in (triplet.positive_id, triplet.negative_id)}


def known_positives(
    triplets: pa.Table, queries: pa.Table, ingest: Path, among: Collection[str] | None = None
) -> dict[str, set[str]]:
    """Ids of each query's positives by its folded text: those of all triplets, and what was clicked or judged.

    `among`: the documents that are asked about, None = all.
    """
    keys = dict(zip(queries["query_id"].to_pylist(), map(fold, queries["text"].to_pylist()), strict=True))
    positives: dict[str, set[str]] = {}
    for query_id, doc_id in itertools.chain(mined_and_judged(triplets, ingest), _read_clicks(ingest)):
        if query_id in keys and (among is None or doc_id in among):
            positives.setdefault(keys[query_id], set()).add(doc_id)
    return positives


def _read_clicks(ingest: Path) -> Iterator[tuple[str, str]]:
    log = pq.ParquetFile(table_path(ingest, "impressions"))
    for batch in log.iter_batches(columns=["query_id", "doc_id", "clicked"]):
        clicked = batch.filter(batch["clicked"])
        yield from zip(clicked["query_id"].to_pylist(), clicked["doc_id"].to_pylist(), strict=True)
