"""Which mined triplets train the teacher, and as which texts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.errors import UserError
from steps.core.judged import read_judged_sets
from steps.core.leakage import evaluation_keys
from steps.core.texts import document_text, fold


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
    splits = dict(zip(queries["query_id"].to_pylist(), queries["split"].to_pylist(), strict=True))
    evaluation = evaluation_keys(queries.to_pylist())
    documents = {
        doc_id: document_text(title, content)
        for doc_id, title, content in zip(
            *(corpus[column].to_pylist() for column in ("doc_id", "title", "content")), strict=True
        )
    }
    datasets = dict(zip(queries["query_id"].to_pylist(), queries["dataset"].to_pylist(), strict=True))
    rows = triplets.to_pylist()
    _check_ids(rows, set(texts), set(documents), where)
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
        elif splits[row["query_id"]] != "train":
            left_out["not_a_train_query"] += 1
        elif fold(query) in evaluation:
            left_out["evaluation_query"] += 1
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
    """Ids of each query's positives by its folded text: those of all triplets, and what is judged relevant to it."""
    keys = dict(zip(queries["query_id"].to_pylist(), map(fold, queries["text"].to_pylist()), strict=True))
    known: dict[str, set[str]] = {}
    for query_id, doc_id in zip(triplets["query_id"].to_pylist(), triplets["positive_id"].to_pylist(), strict=True):
        known.setdefault(keys[query_id], set()).add(doc_id)
    for judged in read_judged_sets(ingest, ["train"]):
        for query_id, grades in judged.qrels.items():
            known.setdefault(keys[query_id], set()).update(doc_id for doc_id, grade in grades.items() if grade > 0)
    return known


def draw(weights: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """Ascending positions of at most `limit` items, each kept with a chance in proportion to its weight `(n,)`.

    First every item is kept with chance weight / largest weight, then `limit` of the kept are drawn evenly: a weight
    of 0.5 counts half as much as 1 whether or not the limit is reached.
    """
    if not (weights > 0).any():
        return np.zeros(0, dtype=np.int64)
    random = np.random.default_rng(seed)
    kept = np.flatnonzero(random.random(len(weights)) * weights.max() < weights)
    if len(kept) > limit:
        kept = random.choice(kept, size=limit, replace=False)
    return np.sort(kept)


def _check_ids(rows: list[dict[str, str]], query_ids: set[str], doc_ids: set[str], where: Path) -> None:
    for column, known in (("query_id", query_ids), ("positive_id", doc_ids), ("negative_id", doc_ids)):
        unknown = next((row[column] for row in rows if row[column] not in known), None)
        if unknown is not None:
            raise UserError(
                f"triplets: {column} {unknown!r} is not in the tables of {where}; run ingest and mine again so that"
                " both come from the same data"
            )
