"""How much of the teacher's own ranking a student keeps: needs texts that trained nobody, and no judgement."""

from collections.abc import Mapping

import numpy as np

from steps.core.tables import Part
from steps.retrieval.exact_search import best_documents

DEPTH = 10
QUERY_PARTS: tuple[Part, ...] = ("train_queries", "unlabelled_queries")  # those that people wrote
_TEXTS = 500
_QUERIES = 100
_DOCUMENTS = 500_000  # a seeded sample of a larger corpus
_ORIGINS = 50  # texts from documents that it takes to say how well they find these
_ENOUGH = 0.92  # share of the teacher's nDCG@10: what is expected errs by 2 points, and 95 % would be enough
_ENOUGH_OF_MORE = 0.8  # of what is expected at least: good students have kept up to 15 points more


def ranking_kept(
    teacher_vectors: np.ndarray,
    student_vectors: np.ndarray,
    documents: np.ndarray,
    seed: int,
    *,
    cosine: bool,
    origins: np.ndarray | None = None,
) -> dict[str, float]:
    """Compare the ten documents nearest to each text by the teacher and by the student.

    Vectors of texts `(texts, dim)`, of which up to 500 are read, and of documents `(n, dim)`, of more than 500,000 a
    sample. Means of `overlap`, the share of the teacher's documents among the student's, and of `ndcg`, where the
    teacher's first document is worth ten and its tenth one. With `origins`, rows `(texts,)` of the documents that texts
    are from, -1 for none, also `found` and `found_by_teacher`: the nDCG@10 of both where the origin alone is relevant.
    """
    depth = min(DEPTH, len(documents))
    draw = np.random.default_rng((seed, 5))
    texts = draw.permutation(len(teacher_vectors))[:_TEXTS]
    rows = np.sort(draw.permutation(len(documents))[:_DOCUMENTS])
    theirs, ours = (
        best_documents(vectors[texts], documents, depth, rows, cosine=cosine)[1]
        for vectors in (teacher_vectors, student_vectors)
    )
    same = ours[:, :, None] == theirs[:, None, :]  # (texts, the student's rank, the teacher's rank)
    gains = same @ np.arange(depth, 0, -1.0)
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    ideal = np.arange(depth, 0, -1.0) @ discounts
    figures = {"overlap": float(same.any(axis=2).mean()), "ndcg": float((gains @ discounts / ideal).mean())}
    if origins is not None and (has_origin := np.isin(origins[texts], rows)).sum() >= _ORIGINS:
        for name, nearest in (("found", ours), ("found_by_teacher", theirs)):
            hits = nearest[has_origin] == origins[texts][has_origin, None]
            figures[name] = float((hits @ discounts).mean())
    return figures


def expected_retention(ndcg: float) -> float:
    """About the share of the teacher's nDCG@10 on queries that a student of this held-out nDCG keeps, 0 to 1.

    `1 - 1.5 (1 - ndcg)^2.5`, fitted to dev queries of SciFact and MedQuAD in disguise (docs/decisions.md, 40), where it
    errs by 2 points (root mean square) above an nDCG of 0.65, single ones by 6, and by more below. The students only
    imitated; those that also learn which document a text is from keep up to 15 points more.
    """
    return max(0.0, 1 - 1.5 * (1 - ndcg) ** 2.5)


def texts_to_rank(parts: np.ndarray) -> tuple[np.ndarray, bool]:
    """Positions of the held-out texts to compare: people's queries, and True, or all texts if there are too few."""
    queries = np.flatnonzero(np.isin(parts, QUERY_PARTS))
    return (queries, True) if len(queries) >= _QUERIES else (np.arange(len(parts)), False)


def describe_ranking(
    ranking: Mapping[str, float], documents: int, *, queries: bool, counted: bool, imitates: bool
) -> str:
    """Say in a line what `ranking_kept` found, and what that means.

    `counted`: epochs are not auto; `imitates`: it does not learn which document a text is from.
    """
    expected = expected_retention(ranking["ndcg"])
    among = f" in a sample of {_DOCUMENTS:,} of {documents:,}" if documents > _DOCUMENTS else ""
    texts = "queries" if queries else "titles, sentences and other texts of the documents"
    sentence = (
        f"finds {ranking['overlap']:.0%} of the teacher's ten nearest documents to {texts} that trained nobody{among}"
    )
    if queries:
        share = f"about {expected:.0%}" if imitates else f"at least about {expected:.0%}"
        sentence += f", so it may keep {share} of the teacher's nDCG@10"
    elif "found" in ranking:
        sentence += (
            f", and the document that a text is from with an nDCG@10 of {ranking['found']:.2f} (the teacher"
            f" {ranking['found_by_teacher']:.2f})"
        )
    is_little = expected < (_ENOUGH if imitates else _ENOUGH_OF_MORE)
    if not queries and ranking.get("found_by_teacher"):
        is_little = ranking["found"] < _ENOUGH * ranking["found_by_teacher"]
    if is_little:
        longer = ", or let it train until it has converged (epochs: auto)" if counted else ""
        return (
            f"{sentence}; WARNING: that is little; give unlabelled queries (ingest.unlabelled_queries) or more texts"
            f" (embed.least_texts, embed.max_part_texts){longer}"
        )
    if queries:
        return sentence
    return (
        f"{sentence}; what it keeps of queries that are worded otherwise is not known: a hundred real ones would tell"
        " (ingest.unlabelled_queries)"
    )
