"""Which mined triplets train the teacher, and as which texts."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.document_texts import template_of
from steps.core.texts import fold
from steps.training.triplets import check_ids, draw, refused_queries


@dataclass(frozen=True)
class TextTriplet:
    """A training query, a document to bring near and one to push away, with the source that mined them."""

    query: str
    positive: str
    negative: str
    source: str


@dataclass(frozen=True)
class TripletChoice:
    """The triplets to train on, and how many were left out for which reason."""

    chosen: list[TextTriplet]
    left_out: dict[str, int]

    @property
    def by_source(self) -> dict[str, int]:
        """Chosen triplets a source."""
        return dict(sorted(Counter(triplet.source for triplet in self.chosen).items()))


def choose_triplets(
    triplets: pa.Table, queries: pa.Table, corpus: pa.Table, limit: int, seed: int, where: Path
) -> TripletChoice:
    """Draw at most `limit` triplets, each with a chance in proportion to its weight, and look up their texts.

    Left out and counted: a query that is not of the train split or whose folded text is an evaluation query's, and a
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
    rows = triplets.to_pylist()
    for column, known in (("query_id", texts), ("positive_id", documents), ("negative_id", documents)):
        check_ids(column, triplets[column].to_pylist(), known, where)
    left_out = {"not_a_train_query": 0, "evaluation_query": 0, "negative_reads_like_positive": 0, "not_drawn": 0}
    usable: list[TextTriplet] = []
    weights: list[float] = []
    for row in rows:
        query = texts[row["query_id"]]
        positive, negative = documents[row["positive_id"]], documents[row["negative_id"]]
        if reason := refused.get(row["query_id"]):
            left_out[reason] += 1
        elif fold(positive) == fold(negative):
            left_out["negative_reads_like_positive"] += 1
        else:
            usable.append(TextTriplet(query, positive, negative, row["source"]))
            weights.append(row["weight"])
    drawn = draw(np.asarray(weights, dtype=np.float64), limit, seed)
    left_out["not_drawn"] = len(usable) - len(drawn)
    return TripletChoice([usable[index] for index in drawn], left_out)
