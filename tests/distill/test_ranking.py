"""What a student keeps of the teacher's ranking, against a plain float64 computation."""

import math

import numpy as np
import pytest

from steps.distill.ranking import describe_ranking, expected_retention, ranking_kept, texts_to_rank

DRAW = np.random.default_rng(3)
DOCUMENTS = DRAW.normal(size=(60, 8)).astype(np.float32)
WANTED = DRAW.normal(size=(25, 8)).astype(np.float32)


def best_ten(query: np.ndarray, *, cosine: bool) -> list[int]:
    documents = DOCUMENTS.astype(np.float64)
    if cosine:
        documents = documents / np.sqrt((documents**2).sum(axis=1, keepdims=True))
    scores = [float(document @ query.astype(np.float64)) for document in documents]
    return sorted(range(len(scores)), key=lambda row: -scores[row])[:10]


@pytest.mark.parametrize("cosine", [True, False])
def test_overlap_and_ndcg_are_those_of_the_definition(cosine: bool) -> None:
    student_vectors = WANTED + 0.4 * DRAW.normal(size=WANTED.shape).astype(np.float32)
    overlaps, ndcgs = [], []
    for mine, theirs in zip(student_vectors, WANTED, strict=True):
        hits, right = best_ten(mine, cosine=cosine), best_ten(theirs, cosine=cosine)
        overlaps.append(len(set(hits) & set(right)) / 10)
        worth = {document: 10 - rank for rank, document in enumerate(right)}
        gained = sum(worth.get(document, 0) / math.log2(rank + 2) for rank, document in enumerate(hits))
        ndcgs.append(gained / sum((10 - rank) / math.log2(rank + 2) for rank in range(10)))
    figures = ranking_kept(WANTED, student_vectors, DOCUMENTS, 7, cosine=cosine)
    assert figures["overlap"] == pytest.approx(np.mean(overlaps), abs=1e-9)
    assert figures["ndcg"] == pytest.approx(np.mean(ndcgs), abs=1e-9)
    assert figures["overlap"] < 1


def test_the_teacher_keeps_all_of_its_ranking_and_fewer_than_ten_documents_are_ranked_whole() -> None:
    assert ranking_kept(WANTED, 3 * WANTED, DOCUMENTS, 7, cosine=True) == {"overlap": 1.0, "ndcg": pytest.approx(1.0)}
    figures = ranking_kept(WANTED, -WANTED, DOCUMENTS[:4], 7, cosine=True)
    assert figures["overlap"] == 1.0 and figures["ndcg"] < 1.0


def test_what_a_student_may_keep_rises_with_its_held_out_ranking() -> None:
    retentions = [expected_retention(ndcg) for ndcg in (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)]
    assert retentions == sorted(retentions) and retentions[0] == 0 and retentions[-1] == 1
    assert expected_retention(0.75) == pytest.approx(1 - 1.5 * math.sqrt(0.25**5))  # 95.3 %


@pytest.mark.parametrize("cosine", [True, False])
def test_texts_find_the_documents_that_they_are_from(cosine: bool) -> None:
    teacher = DRAW.normal(size=(80, 8)).astype(np.float32)
    student = teacher + 0.8 * DRAW.normal(size=teacher.shape).astype(np.float32)
    origins = np.array([best_ten(query, cosine=cosine)[row % 10] for row, query in enumerate(teacher)])
    origins[::5] = -1  # queries
    origins[1::5] = (origins[1::5] + 1) % len(DOCUMENTS)
    figures = ranking_kept(teacher, student, DOCUMENTS, 7, cosine=cosine, origins=origins)
    assert "found" not in ranking_kept(teacher, student, DOCUMENTS, 7, cosine=cosine, origins=np.full(80, -1))
    for name, vectors in (("found_by_teacher", teacher), ("found", student)):
        gains = [
            1 / math.log2(ten.index(origin) + 2) if origin in (ten := best_ten(vector, cosine=cosine)) else 0.0
            for vector, origin in zip(vectors, origins.tolist(), strict=True)
            if origin >= 0
        ]
        assert figures[name] == pytest.approx(np.mean(gains), abs=1e-9) and 0 < figures[name] < 1


@pytest.mark.parametrize(
    ("ndcg", "origin_ndcg", "queries", "imitates", "warned"),
    [
        (0.65, None, True, True, True), (0.75, None, True, True, False), (0.5, None, True, False, True),
        (0.65, None, True, False, False), (0.65, None, False, True, True), (0.75, None, False, True, False),
        (0.5, 0.6, False, False, True), (0.5, 0.7, False, False, False),
    ],
)  # fmt: skip
def test_a_student_that_may_keep_little_is_warned_of(
    ndcg: float, origin_ndcg: float | None, queries: bool, imitates: bool, warned: bool
) -> None:
    """Of queries by the teacher's ranking; of texts of documents by the documents that they are from, if any."""
    ranking = {"overlap": 0.6, "ndcg": ndcg} | (
        {} if origin_ndcg is None else {"found": origin_ndcg, "found_by_teacher": 0.7}
    )

    def describe(documents: int, counted: bool) -> str:
        return describe_ranking(ranking, documents, queries=queries, counted=counted, imitates=imitates)

    assert ("WARNING" in describe(60, False)) == warned == ("epochs: auto" in describe(60, True))
    assert (f"{expected_retention(ndcg):.0%} of" in describe(60, False)) == queries, "of no query nothing is foretold"
    assert "sample" not in describe(60, False) and "500,000 of 2,000,000" in describe(2_000_000, False)


@pytest.mark.parametrize(("count", "queries"), [(99, False), (100, True)])
def test_a_forecast_is_made_of_queries_alone_if_there_are_enough(count: int, queries: bool) -> None:
    parts = np.array(["titles"] * 50 + ["unlabelled_queries"] * (count - 40) + ["train_queries"] * 40)
    rows, of_queries = texts_to_rank(parts)
    assert of_queries == queries and rows.tolist() == list(range(50 * queries, 50 + count))
