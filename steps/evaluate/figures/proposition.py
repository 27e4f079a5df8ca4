"""EmbedDistill's Proposition 1 over judged pairs, on a score scale that is stated.

The proposition puts scores into a sigmoid. Cosines hardly move one: its label term then measures the scale, not the
teacher. So scores are put on the scale `a s + b` on which their sigmoid fits the judgements best (Platt 1999). That is
the proposition's own setting with embeddings `(a e_q, b)` of queries and `(e_d, 1)` of documents.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from steps.core.judged import JudgedSet
from steps.evaluate.figures.base import NEIGHBOURS, EvaluatedTower, Figure, Part, RenderContext, model_table
from steps.evaluate.figures.geometry import comparable
from steps.evaluate.formatting import Block
from steps.evaluate.systems import Student, document_rows, document_vectors

_AT_ONCE = 10_000  # pairs whose embeddings are in memory


class BoundOnTheError(Figure):
    """`proposition.<set>.<student>` of metrics.json: the formal statement's terms (Proposition 3, App. C.1).

    `pairs`, over which they are means, are judged ones, and each query's ten best hits and ten random documents as
    irrelevant where nobody judged them. `gap`, the distillation loss less the teacher's own, is at most `bound`, which
    is `2 K_Q document_term + 2 K_D query_term + K_Q K_D label_term`, K the longest embeddings; `document_term` is 0, as
    documents are the teacher's own. Distances are on the score scale, `scale` s + `offset`. `student_label_term`: the
    same as the teacher's, of the student's scores.
    """

    title = "An upper bound on the student's extra error"
    part: ClassVar[Part] = "distance"
    position = 2
    analysis = True

    def measure(self, evaluated: EvaluatedTower) -> dict[str, float] | None:
        """Over judged documents, the teacher's nearest, and as many that are drawn from all."""
        if not isinstance(evaluated.tower, Student):
            return None
        release, dataset = evaluated.tower.release, evaluated.judged.dataset
        ids, nearest = release.documents(dataset).ids, evaluated.teacher_hits
        random_rows = np.random.default_rng(evaluated.seed).integers(0, len(ids), (len(nearest), NEIGHBOURS))
        extra_docs = [[*hits, *(ids[row] for row in rows)] for hits, rows in zip(nearest, random_rows, strict=True)]
        queries, doc_ids, relevant = judged_pairs(evaluated.judged, extra_docs)
        rows = document_rows(release, dataset, doc_ids)
        is_indexed = rows >= 0
        queries, relevant, rows = queries[is_indexed], relevant[is_indexed], rows[is_indexed]
        if not len(relevant):
            return None
        theirs, ours = comparable(evaluated.teacher_vectors, evaluated.vectors)
        return measure_proposition(
            theirs, ours, queries, lambda part: document_vectors(release, dataset, rows[part]), relevant
        )

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        yield (
            "Proposition 1 of [EmbedDistill](https://arxiv.org/abs/2301.12005) (Kim et al., 2023) over judged pairs,"
            " the teacher's ten best hits and ten random documents of each query. Documents without a judgement count"
            " as irrelevant. Scores *s* are put on the scale *a s + b* on which their sigmoid fits the judgements best."
            " The *gap* is the student's distillation loss less the teacher's loss; it is at most the *bound*."
        )
        terms = ("query_term", "label_term", "student_label_term", "gap", "bound")
        yield model_table(
            ["student", "pairs", "a", "b", "query term", "label term", "its own", "gap", "bound"],
            value,
            lambda bound: [
                f"{bound['pairs']:,}",
                *(f"{bound[name]:.2f}" for name in ("scale", "offset")),
                *(f"{bound[term]:.3f}" for term in terms),
            ],
        )


def judged_pairs(judged: JudgedSet, extra_docs: Sequence[Sequence[str]]) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Row of the query, document id and whether it is relevant, each `(pairs,)`: all judged pairs, and irrelevant ones.

    The latter are documents of `extra_docs`, by query, that nobody judged: often no judged document is irrelevant.
    """
    rows, doc_ids, relevant = [], [], []
    for row, (query, hits) in enumerate(zip(judged.query_ids, extra_docs, strict=True)):
        grades = judged.qrels[query]
        skipped = {query} - grades.keys() if judged.ignore_identical_ids else set()
        for doc_id in (doc for doc in dict.fromkeys([*grades, *hits]) if doc not in skipped):
            rows.append(row)
            doc_ids.append(doc_id)
            relevant.append(grades.get(doc_id, 0) >= judged.relevant_from)
    return np.array(rows, dtype=np.int64), doc_ids, np.array(relevant, dtype=bool)


def score_scale(scores: np.ndarray, relevant: np.ndarray) -> tuple[float, float]:
    """`a` and `b` with which `sigmoid(a s + b)` gives the labels the greatest likelihood, `a` at least 0.

    Targets are Platt's, (n+ + 1) / (n+ + 2) and 1 / (n- + 2), which keep `a` finite where scores part the labels.
    """
    positives = int(relevant.sum())
    target = np.where(relevant, (positives + 1) / (positives + 2), 1 / (len(relevant) - positives + 2))
    spread = float(scores.std()) or 1.0
    standard = (scores - scores.mean()) / spread  # else the steps of the search depend on the scores' unit

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        logits = at[0] * standard + at[1]
        slope = expit(logits) - target
        return float(np.mean(np.logaddexp(0, logits) - target * logits)), np.array(
            [np.mean(slope * standard), np.mean(slope)]
        )

    solution = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)])
    scale = float(solution.x[0]) / spread
    return scale, float(solution.x[1]) - scale * float(scores.mean())


def measure_proposition(
    teacher: np.ndarray,
    student: np.ndarray,
    queries: np.ndarray,
    documents: Callable[[slice], np.ndarray],
    relevant: np.ndarray,
) -> dict[str, float]:
    """Of the queries' embeddings `(n, dim)` by both, and of pairs: rows of queries and labels `(pairs,)`.

    `documents` gives the embeddings of the documents of some pairs, `(some, dim)`.
    """
    student_scores, scores, distances = (np.empty(len(queries)) for _ in range(3))
    max_norm = 0.0
    for start in range(0, len(queries), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        ours, theirs, document_vectors = (
            vectors.astype(np.float64) for vectors in (student[queries[part]], teacher[queries[part]], documents(part))
        )
        student_scores[part], scores[part] = (
            np.einsum("ij,ij->i", vectors, document_vectors) for vectors in (ours, theirs)
        )
        distances[part] = np.linalg.norm(ours - theirs, axis=1)
        max_norm = max(max_norm, _longest(document_vectors))
    scale, offset = score_scale(scores, relevant)
    teacher_logits, student_logits = scale * scores + offset, scale * student_scores + offset
    says = expit(teacher_logits)
    query_term = scale * float(distances.mean())
    label_term = float(np.abs(says - relevant).mean())
    query_rows = np.unique(queries)
    longest_query = math.hypot(scale * max(_longest(vectors[query_rows]) for vectors in (student, teacher)), offset)
    longest_document = math.hypot(max_norm, 1.0)
    return {
        "scale": scale,
        "offset": offset,
        "pairs": len(relevant),
        "relevant": int(relevant.sum()),
        "query_term": query_term,
        "document_term": 0.0,
        "label_term": label_term,
        "student_label_term": float(np.abs(expit(student_logits) - relevant).mean()),
        "gap": _entropy(student_logits, says) - _entropy(teacher_logits, relevant.astype(np.float64)),
        "bound": 2 * longest_document * query_term + longest_query * longest_document * label_term,
    }


def _longest(vectors: np.ndarray) -> float:
    return float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())


def _entropy(logits: np.ndarray, target: np.ndarray) -> float:
    """Mean binary cross-entropy of `sigmoid(logits)` with soft labels (Eq. 9 and 11)."""
    return float(np.mean(np.logaddexp(0, logits) - target * logits))
