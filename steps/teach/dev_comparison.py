"""Does the trained teacher beat its base? Both search the same documents for the same dev queries."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from steps.core.corpus import CorpusRows
from steps.core.judged import JudgedSet
from steps.core.measures import ndcg_at_10_of_matrix
from steps.encoders.precision import Precision
from steps.encoders.towers import encode
from steps.training.comparison import is_better, p_of_gain
from steps.training.documents import texts_of

Scores = Callable[[list[str], list[str]], np.ndarray]


@dataclass(frozen=True)
class DevTask:
    """Dev queries of one data set and the documents that they search, by id, the relevant ones among them."""

    judged: JudgedSet
    documents: dict[str, str]


def dev_tasks(judged: Sequence[JudgedSet], ingest: Path, limit: int, distractors: int, seed: int) -> list[DevTask]:
    """At most `limit` dev queries by seed, a task a data set: their judged documents and `distractors` more."""
    random = np.random.default_rng(seed)
    tasks = []
    for subset in draw_queries(judged, limit, random):
        corpus = CorpusRows(ingest, ["doc_id", "dataset"])
        dataset_ids = {doc_id for doc_id, dataset in corpus if dataset == subset.dataset}
        graded = {doc_id for grades in subset.qrels.values() for doc_id in grades}
        candidates = sorted(dataset_ids - graded)
        sample = random.choice(len(candidates), size=min(distractors, len(candidates)), replace=False)
        chosen = (graded & dataset_ids).union(candidates[index] for index in sample)
        tasks.append(DevTask(subset, dict(sorted(texts_of(ingest, chosen).items()))))
    return tasks


def draw_queries(judged: Sequence[JudgedSet], limit: int, random: np.random.Generator) -> list[JudgedSet]:
    """The sets with at most `limit` of their queries in all; those of which none was drawn are left out."""
    queries = sorted(query for item in judged for query in item.query_ids)
    if len(queries) > limit:
        queries = [queries[index] for index in np.sort(random.choice(len(queries), size=limit, replace=False))]
    chosen = set(queries)
    return [subset for item in judged if (subset := _only(item, chosen)).query_ids]


def _only(judged: JudgedSet, queries: Collection[str]) -> JudgedSet:
    """The set with some of its queries."""
    rows = [row for row, query in enumerate(judged.query_ids) if query in queries]
    ids = [judged.query_ids[row] for row in rows]
    qrels = {query: judged.qrels[query] for query in ids}
    return replace(judged, query_ids=ids, texts=[judged.texts[row] for row in rows], qrels=qrels)


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
