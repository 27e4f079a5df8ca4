"""Which mined triplets train the teacher, and as which texts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.core.document_texts import template_of
from steps.core.judged import read_judged_sets
from steps.core.tables import table_path
from steps.core.texts import fold
from steps.training.triplets import check_ids, draw, refused_queries


@dataclass(frozen=True)
class TextTriplet:
    """A training query, a document to bring near and one to push away, with the source that mined them."""

    query: str
    positive: str
    negative: str
    source: str
    positive_id: str
    dataset: str  # of the query


@dataclass(frozen=True)
class TripletChoice:
    """The triplets to train on, and how many were left out for which reason."""

    chosen: list[TextTriplet]
    left_out: dict[str, int]

    @property
    def by_source(self) -> dict[str, int]:
        """Chosen triplets a source."""
        return dict(sorted(Counter(triplet.source for triplet in self.chosen).items()))

    def mostly_unused(self, limit: int) -> str | None:
        """Why more than half of the usable triplets do not train, else None; `limit` as they were chosen by."""
        usable = len(self.chosen) + self.left_out["not_drawn"]
        if 2 * self.left_out["not_drawn"] <= usable:
            return None
        numbers = f"{len(self.chosen):,} of {usable:,} usable triplets train"
        if len(self.chosen) == limit:
            return f"{numbers} (max_triplets); raise it where there is time for more, 0 takes all"
        return f"{numbers} (each with a chance of its weight to the largest one); see source_weights and mine's weights"


def choose_triplets(
    triplets: pa.Table,
    queries: pa.Table,
    corpus: pa.Table,
    limit: int,
    seed: int,
    where: Path,
    source_weights: Mapping[str, float],
) -> TripletChoice:
    """Draw at most `limit` triplets (0 = all), each with a chance in proportion to its weight, and look up their texts.

    A triplet's weight is multiplied by that of its source, 1 where `source_weights` has none. Left out and counted: a
    source of weight 0, a query that is not of the train split or whose folded text is an evaluation query's, and a
    negative that reads like its positive (a near-duplicate document would be pulled and pushed at once). UserError
    when a triplet names an id that the tables of `where` do not hold.
    """
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    refused, template = refused_queries(queries), template_of(corpus.schema)
    documents = {
        doc_id: template.text(*fields)
        for doc_id, *fields in zip(
            *(corpus[column].to_pylist() for column in ("doc_id", "title", "topic", "content")), strict=True
        )
    }
    datasets = dict(zip(queries["query_id"].to_pylist(), queries["dataset"].to_pylist(), strict=True))
    rows = triplets.to_pylist()
    for column, known in (("query_id", texts), ("positive_id", documents), ("negative_id", documents)):
        check_ids(column, triplets[column].to_pylist(), known, where)
    reasons = ("source_weight_zero", "not_a_train_query", "evaluation_query", "negative_reads_like_positive")
    left_out = dict.fromkeys((*reasons, "not_drawn"), 0)
    usable: list[TextTriplet] = []
    weights: list[float] = []
    for row in rows:
        query = texts[row["query_id"]]
        positive, negative = documents[row["positive_id"]], documents[row["negative_id"]]
        factor = source_weights.get(row["source"], 1.0)
        if not factor:
            left_out["source_weight_zero"] += 1
        elif reason := refused.get(row["query_id"]):
            left_out[reason] += 1
        elif fold(positive) == fold(negative):
            left_out["negative_reads_like_positive"] += 1
        else:
            found = TextTriplet(query, positive, negative, row["source"], row["positive_id"], datasets[row["query_id"]])
            usable.append(found)
            weights.append(row["weight"] * factor)
    drawn = draw(np.asarray(weights, dtype=np.float64), limit or len(usable), seed)
    left_out["not_drawn"] = len(usable) - len(drawn)
    return TripletChoice([usable[index] for index in drawn], left_out)


def known_positives(triplets: pa.Table, queries: pa.Table, ingest: Path) -> dict[str, set[str]]:
    """Ids of each query's positives by its folded text: those of all triplets, and what was clicked or judged."""
    keys = dict(zip(queries["query_id"].to_pylist(), map(fold, queries["text"].to_pylist()), strict=True))
    known: dict[str, set[str]] = {}
    for query_id, doc_id in zip(triplets["query_id"].to_pylist(), triplets["positive_id"].to_pylist(), strict=True):
        known.setdefault(keys[query_id], set()).add(doc_id)
    for batch in pq.ParquetFile(table_path(ingest, "impressions")).iter_batches(
        columns=["query_id", "doc_id", "clicked"]
    ):
        clicked = batch.filter(batch["clicked"])
        for query_id, doc_id in zip(clicked["query_id"].to_pylist(), clicked["doc_id"].to_pylist(), strict=True):
            if query_id in keys:
                known.setdefault(keys[query_id], set()).add(doc_id)
    for judged in read_judged_sets(ingest, ["train"]):
        for query_id, grades in judged.qrels.items():
            known.setdefault(keys[query_id], set()).update(doc_id for doc_id, grade in grades.items() if grade > 0)
    return known
