"""Does the trained teacher beat its base? Both search the same documents for the same dev queries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.core.corpus import CorpusRows, texts_of
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.measures import is_better, ndcg_at_10_of_matrix, p_of_gain
from steps.encoders.precision import Precision
from steps.encoders.towers import encode
from steps.teach.kinds.base import OnTriplets

Scores = Callable[[list[str], list[str]], np.ndarray]


@dataclass(frozen=True)
class DevTask:
    """Dev queries of one data set and the documents that they search, by id, the relevant ones among them."""

    judged: JudgedSet
    documents: dict[str, str]


def dev_tasks(ingest: Path, params: OnTriplets) -> list[DevTask]:
    """At most `dev_queries` dev queries by seed, a task a data set: their judged documents and `dev_documents` more."""
    random = np.random.default_rng(params.seed)
    tasks = []
    for subset in draw_queries(read_judged_sets(ingest, ["dev"]), params.dev_queries, random):
        corpus = CorpusRows(ingest, ["doc_id", "dataset"])
        dataset_ids = {doc_id for doc_id, dataset in corpus if dataset == subset.dataset}
        graded = {doc_id for grades in subset.qrels.values() for doc_id in grades}
        candidates = sorted(dataset_ids - graded)
        sample = random.choice(len(candidates), size=min(params.dev_documents, len(candidates)), replace=False)
        chosen = (graded & dataset_ids).union(candidates[index] for index in sample)
        tasks.append(DevTask(subset, dict(sorted(texts_of(ingest, chosen).items()))))
    return tasks


def draw_queries(judged: Sequence[JudgedSet], limit: int, random: np.random.Generator) -> list[JudgedSet]:
    """The sets with at most `limit` of their queries in all; those of which none was drawn are left out."""
    queries = sorted(query for item in judged for query in item.query_ids)
    if len(queries) > limit:
        queries = [queries[index] for index in np.sort(random.choice(len(queries), size=limit, replace=False))]
    chosen = set(queries)
    subsets = []
    for item in judged:
        rows = [row for row, query in enumerate(item.query_ids) if query in chosen]
        ids, texts = ([column[row] for row in rows] for column in (item.query_ids, item.texts))
        subsets.append(replace(item, query_ids=ids, texts=texts, qrels={query: item.qrels[query] for query in ids}))
    return [subset for subset in subsets if subset.query_ids]


def ndcg_per_query(
    tower: SentenceTransformer, tasks: Sequence[DevTask], precision: Precision, batch_size: int, caption: str
) -> dict[str, float]:
    """nDCG@10 of every dev query, by exact search with the tower's own similarity."""

    def scores(queries: list[str], texts: list[str]) -> np.ndarray:
        documents = encode(tower, texts, "document", precision=precision, batch_size=batch_size, caption=caption)
        similarities: np.ndarray = tower.similarity(
            encode(tower, queries, "query", precision=precision, batch_size=batch_size), documents
        ).numpy()
        return similarities

    return ndcg_of_scores(scores, tasks)


def ndcg_of_scores(scores: Scores, tasks: Sequence[DevTask]) -> dict[str, float]:
    """nDCG@10 of every dev query, by scores `(queries, documents)` of texts."""
    values: dict[str, float] = {}
    for task in tasks:
        judged = task.judged
        matrix = scores(judged.texts, list(task.documents.values()))
        ndcg = ndcg_at_10_of_matrix(judged.qrels, judged.query_ids, list(task.documents), matrix)
        values |= dict(zip(judged.query_ids, ndcg.tolist(), strict=True))
    return values


def compare(base: Mapping[str, float], teacher: Mapping[str, float]) -> dict[str, float | int | bool]:
    """Means over the common queries, and the one-sided paired t-test that the teacher's is larger."""
    query_ids = sorted(base)
    before, after = (np.array([values[query_id] for query_id in query_ids]) for values in (base, teacher))
    return {
        "n": len(query_ids),
        "ndcg_base": float(before.mean()),
        "ndcg_teacher": float(after.mean()),
        "p_value": p_of_gain(before, after),
        "teacher_beats_base": is_better(before, after),
    }
