"""Does the trained teacher beat its base? Both search the same documents for the same dev queries."""

from collections.abc import Sequence
from dataclasses import dataclass

import ir_measures
import numpy as np
import pyarrow as pa
from ir_measures import Qrel, ScoredDoc, nDCG
from scipy.stats import ttest_rel
from sentence_transformers import SentenceTransformer

from steps.core.precision import Precision
from steps.core.texts import document_text
from steps.core.towers import encode

DEPTH = 10
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class DevTask:
    """Dev queries of one data set and the documents they search, the relevant ones among them."""

    queries: dict[str, str]
    documents: dict[str, str]
    grades: list[Qrel]


def dev_tasks(
    queries: pa.Table, qrels: pa.Table, corpus: pa.Table, limit: int, distractors: int, seed: int
) -> list[DevTask]:
    """At most `limit` dev queries by seed, a task a data set: their judged documents and `distractors` more."""
    random = np.random.default_rng(seed)
    rows = [row for row in qrels.to_pylist() if row["split"] == "dev"]
    judged = {row["query_id"] for row in rows if row["grade"] > 0}
    dev = [row for row in queries.to_pylist() if row["split"] == "dev" and row["query_id"] in judged]
    if len(dev) > limit:
        dev = [dev[index] for index in np.sort(random.choice(len(dev), size=limit, replace=False))]
    tasks = []
    for dataset in sorted({row["dataset"] for row in dev}):
        asked = {row["query_id"]: row["text"] for row in dev if row["dataset"] == dataset}
        grades = [Qrel(row["query_id"], row["doc_id"], row["grade"]) for row in rows if row["query_id"] in asked]
        texts = {
            row["doc_id"]: document_text(row["title"], row["content"])
            for row in corpus.to_pylist()
            if row["dataset"] == dataset
        }
        others = sorted(texts.keys() - {grade.doc_id for grade in grades})
        drawn = random.choice(len(others), size=min(distractors, len(others)), replace=False)
        chosen = {grade.doc_id for grade in grades} | {others[index] for index in drawn}
        tasks.append(DevTask(asked, {doc_id: texts[doc_id] for doc_id in sorted(chosen & texts.keys())}, grades))
    return tasks


def ndcg_per_query(
    tower: SentenceTransformer, tasks: Sequence[DevTask], precision: Precision, batch_size: int, what: str
) -> dict[str, float]:
    """nDCG@10 of every dev query, by exact search with the tower's own similarity."""
    values: dict[str, float] = {}
    for task in tasks:
        asked, held = list(task.queries), list(task.documents)
        documents = encode(
            tower, list(task.documents.values()), "document", precision=precision, batch_size=batch_size, what=what
        )
        sought = encode(tower, list(task.queries.values()), "query", precision=precision, batch_size=batch_size)
        scores = tower.similarity(sought, documents).numpy()
        found = [
            ScoredDoc(query_id, held[column], float(scores[row, column]))
            for row, query_id in enumerate(asked)
            for column in np.argsort(-scores[row], kind="stable")[: 2 * DEPTH]
        ]
        values |= {m.query_id: m.value for m in ir_measures.iter_calc([nDCG @ DEPTH], task.grades, found)}
    return values


def compare(base: dict[str, float], teacher: dict[str, float]) -> dict[str, float | int | bool]:
    """Means over the common queries, and the one-sided paired t-test that the teacher's is larger."""
    query_ids = sorted(base)
    before, after = (np.array([values[query_id] for query_id in query_ids]) for values in (base, teacher))
    gain = after - before
    # all differences zero, or a single query: the test has nothing to say
    p_value = float(ttest_rel(after, before, alternative="greater").pvalue) if np.ptp(gain) > 0 else 1.0
    return {
        "n": len(query_ids),
        "ndcg_base": float(before.mean()),
        "ndcg_teacher": float(after.mean()),
        "p_value": p_value,
        "teacher_beats_base": bool(gain.mean() > 0 and p_value <= SIGNIFICANT),
    }
