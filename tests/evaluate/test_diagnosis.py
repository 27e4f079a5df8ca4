"""Proposition 1 on a scale, neighbours, search effort and semantic IDs against loops and hand cases."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slimtower.serving.release import Documents, Release
from steps.core.judged import JudgedSet
from steps.evaluate import proposition
from steps.evaluate.effort import ladder, measure_effort
from steps.evaluate.proposition import judged_pairs, measure_proposition, score_scale
from steps.evaluate.semantic_codes import centroids, measure_codes, prefix_recall, query_codes, read_codes
from steps.evaluate.space import measure_space, neighbours
from steps.evaluate.systems import document_rows, document_vectors


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def release(vectors: np.ndarray, factory: str = "IVF16,Flat", shards: int = 1, folder: Path = Path("none")) -> Release:
    """What is asked of a release, over documents d0, d1 and so on."""
    ids = [f"d{row}" for row in range(len(vectors))]
    ann = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    ann.train(vectors)
    ann.add(vectors)
    parts = []
    for part in np.array_split(vectors, shards):
        parts.append(faiss.IndexFlatIP(vectors.shape[1]))
        parts[-1].add(part)
    flat: Any = parts[0]
    if shards > 1:
        flat = faiss.IndexShards(vectors.shape[1], False, True)  # type: ignore[call-arg]
        for part in parts:
            flat.add_shard(part)
    indexes = {"flat": flat, "ann": ann}

    def search(dataset: str, asked: np.ndarray, k: int, kind: str, threads: int) -> tuple[np.ndarray, list[list[str]]]:
        scores, rows = indexes[kind].search(asked, k)
        return scores, [[ids[row] for row in line if row >= 0] for line in rows.tolist()]

    settings = {"nprobe": 1} if "IVF" in factory else {"efSearch": 16} if "HNSW" in factory else {}
    made: Any = SimpleNamespace(
        index=lambda dataset, kind: indexes[kind],
        search=search,
        kinds=lambda dataset: ["ann", "flat"],
        documents=lambda dataset: Documents(ids, ids),
        entries={"api": {"indexes": {"ann": {"settings": settings}}}},
        folder=folder,
        held=flat,  # shards are not owned by what searches them
        parts=parts,
    )
    return made


def judged(relevant: list[list[str]]) -> JudgedSet:
    ids = [f"q{row}" for row in range(len(relevant))]
    grades = {query: dict.fromkeys(docs, 1) for query, docs in zip(ids, relevant, strict=True)}
    return JudgedSet("api", "test", ids, ids, grades)


def test_pairs_are_the_judged_ones_and_hits_that_nobody_judged() -> None:
    asked = JudgedSet("api", "test", ["q0", "q1"], ["", ""], {"q0": {"a": 2, "b": 0}, "q1": {"c": 1}})
    pairs = judged_pairs(asked, [["b", "x"], ["c", "a"]])
    assert pairs.queries.tolist() == [0, 0, 0, 1, 1]
    assert pairs.doc_ids == ["a", "b", "x", "c", "a"]
    assert pairs.relevant.tolist() == [True, False, False, True, False]


def test_the_scale_is_the_most_likely_one_and_finite_where_scores_part_the_labels() -> None:
    generator = np.random.default_rng(0)
    scores = generator.uniform(0, 1, 20_000)
    relevant = generator.random(20_000) < 1 / (1 + np.exp(-(12 * scores - 7)))
    scale, offset = score_scale(scores, relevant)
    assert (scale, offset) == (pytest.approx(12, rel=0.05), pytest.approx(-7, rel=0.05))
    parted, _ = score_scale(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))
    assert 0 < parted < 100
    assert score_scale(np.array([0.9, 0.1]), np.array([False, True]))[0] == 0, "never the wrong way round"


@pytest.mark.parametrize("at_once", [7, 1000])
def test_terms_gap_and_bound_by_hand(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposition, "_AT_ONCE", at_once)
    asking, documents = unit(9, 6, 1), unit(40, 6, 2)
    answering = asking + 0.1 * unit(9, 6, 3)
    queries = np.sort(np.random.default_rng(5).integers(0, 8, 40))  # the last query has no pair
    asking[8], answering[8] = 10 * asking[8], 10 * answering[8]
    teacher, student = asking[queries], answering[queries]
    relevant = np.einsum("ij,ij->i", teacher, documents) + np.random.default_rng(4).normal(0, 0.3, 40) > 0.2
    found = measure_proposition(asking, answering, queries, documents.__getitem__, relevant)
    a, b = found.scale, found.offset
    assert (found.pairs, found.relevant) == (40, int(relevant.sum()))
    apart = label = own = gap = 0.0
    for t, s, d, y in zip(teacher.astype(float), student.astype(float), documents.astype(float), relevant, strict=True):
        says, other = (1 / (1 + math.exp(-(a * float(q @ d) + b))) for q in (t, s))
        apart += a * math.dist(t, s)
        label += abs(says - y)
        own += abs(other - y)
        gap += -says * math.log(other) - (1 - says) * math.log(1 - other)
        gap += y * math.log(says) + (1 - y) * math.log(1 - says)
    assert [found.query_term, found.label_term, found.student_label_term, found.gap] == pytest.approx(
        [apart / 40, label / 40, own / 40, gap / 40], rel=1e-5
    )
    longest = max(math.hypot(a * float(np.linalg.norm(q)), b) for q in (*teacher, *student))
    expected = 2 * math.sqrt(2) * found.query_term + longest * math.sqrt(2) * found.label_term
    assert found.bound == pytest.approx(expected, rel=1e-5)
    assert found.gap <= found.bound


def test_vectors_of_documents_come_from_every_shard() -> None:
    vectors = unit(30, 4, 0)
    for shards in (1, 3):
        made = release(vectors, "Flat", shards)
        rows = document_rows(made, "api", ["d29", "d0", "gone", "d11"])
        assert rows.tolist() == [29, 0, -1, 11]
        np.testing.assert_array_equal(document_vectors(made, "api", rows[rows >= 0]), vectors[[29, 0, 11]])


def test_neighbours_lengths_and_spread() -> None:
    teacher = unit(60, 5, 1)
    student = 2 * teacher + 0.3 * unit(60, 5, 2)
    near = [sorted(set(range(60)) - {q}, key=lambda r, q=q: -float(teacher[q] @ teacher[r]))[:10] for q in range(60)]
    assert [sorted(row) for row in neighbours(teacher).tolist()] == [sorted(row) for row in near]
    found = measure_space(student, 0, teacher, [["a", "b"]] * 60, [["b", "c"]] * 60)
    assert found.documents_kept == 0.5 and 0.5 < (found.queries_kept or 0) < 1
    lengths = np.linalg.norm(student, axis=1)
    assert [found.norm_mean, found.norm_std] == pytest.approx([lengths.mean(), lengths.std()], rel=1e-5)
    own = student / lengths[:, None]
    assert found.anisotropy == pytest.approx((own @ own.T)[np.triu_indices(60, 1)].mean(), abs=1e-5)
    assert set(measure_space(teacher[:1], 0).as_dict()) == {"norm_mean", "norm_std"}
    few = measure_space(teacher[:11], 0, teacher[:11], [["a"]], [["a"]])
    assert few.queries_kept is None, "all others are neighbours of each"


def test_effort_is_the_least_setting_that_loses_a_hundredth_and_the_index_stays_as_served() -> None:
    vectors = unit(2000, 8, 3)
    made = release(vectors)
    asked = judged([[f"d{row}"] for row in range(200)])
    near = vectors[:200] + 0.25 * unit(200, 8, 4)
    found = measure_effort(made, asked, near)
    assert found is not None and (found.knob, found.served, found.most) == ("nprobe", 1, 16)
    ann = made.index("api", "ann")
    assert faiss.extract_index_ivf(ann).nprobe == 1

    def lost(lists: int) -> float:
        """Share of the queries' reciprocal log rank, as each has one relevant document, against all lists."""
        gains = []
        for probed in (lists, 16):
            rows = ann.search(near, 10, params=faiss.SearchParametersIVF(nprobe=probed))[1]
            ranks = [np.flatnonzero(line == query) for query, line in enumerate(rows)]
            gains.append(sum(1 / math.log2(rank[0] + 2) for rank in ranks if len(rank)))
        return 1 - gains[0] / gains[1]

    needed = found.needed or 0
    below = {3: 2, 4: 3, 6: 4, 8: 6, 12: 8, 16: 12, 2: 1}[needed]
    assert lost(needed) == pytest.approx(found.lost) and found.lost <= 0.01 < lost(below)


def test_indexes_without_lists_have_another_knob_or_none() -> None:
    vectors = unit(200, 8, 0)
    graph = release(vectors, "HNSW8")
    found = measure_effort(graph, judged([["d1"], ["d5"]]), vectors[[1, 5]])
    assert found is not None and (found.knob, found.needed) == ("efSearch", 16)
    assert ladder(release(vectors, "SQ8").index("api", "ann")) is None
    assert measure_effort(release(vectors, "SQ8"), judged([["d1"]]), vectors[[1]]) is None
    refined = faiss.index_factory(8, "PCA4,IVF4,SQ8,RFlat", faiss.METRIC_INNER_PRODUCT)
    refined.train(vectors)
    assert ladder(refined) == ("nprobe", [1, 2, 3, 4])


def test_an_index_that_never_finds_what_is_relevant_is_told() -> None:
    vectors = unit(100, 8, 0)
    made = release(vectors, "IVF4,Flat")
    other = release(unit(100, 8, 9), "IVF4,Flat")
    broken: Any = SimpleNamespace(**vars(made))
    broken.search = lambda dataset, asked, k, kind, *threads: (made if kind == "flat" else other).search(
        dataset, asked, k, kind, *threads
    )
    found = measure_effort(broken, judged([["d1"], ["d2"]]), vectors[[1, 2]])
    assert found is not None and found.needed is None and found.lost > 0.5
    assert "needed" not in found.as_dict()


def test_centroids_are_found_again_and_queries_get_the_codes_of_what_is_near(tmp_path: Path) -> None:
    coarse = np.array([[10.0, 0], [-10, 0]], dtype=np.float32)
    fine = np.array([[0.0, 1], [0, -1]], dtype=np.float32)
    codes = np.array([[i % 2, i // 2 % 2] for i in range(40)])
    vectors = coarse[codes[:, 0]] + fine[codes[:, 1]]
    books = centroids(vectors, codes, 3)
    np.testing.assert_allclose(books[:, :2], [coarse, fine], atol=1e-6)
    assert np.isnan(books[:, 2]).all(), "a code that no document has"
    asked = np.array([[9.0, 3], [-20, -0.1]])
    assert query_codes(asked, books).tolist() == [[0, 0], [1, 1]]

    folder = tmp_path / "index" / "api"
    folder.mkdir(parents=True)
    columns = {f"level_{level + 1}": pa.array(codes[:, level].astype(np.int16)) for level in range(2)}
    pq.write_table(pa.table({"doc_id": [f"d{row}" for row in range(40)], **columns}), folder / "semantic_ids.parquet")
    made = release(vectors, "Flat", folder=tmp_path)
    held = read_codes(made, "api", 0)
    assert held is not None and read_codes(release(vectors, "Flat"), "api", 0) is None
    # d0 has the first query's codes, d2 only the first of them, d1 none; the second query has no document
    found = measure_codes(held, judged([["d0", "d2", "d1"], []]), [[0, 2, 1], []], asked)
    assert found == {"recall": pytest.approx([2 / 3, 1 / 3]), "documents": pytest.approx([1 / 2, 1 / 4])}


def test_recall_by_prefix_against_a_loop() -> None:
    generator = np.random.default_rng(2)
    queries, documents = generator.integers(0, 3, (7, 4)), generator.integers(0, 3, (50, 4))
    relevant = [generator.permutation(50)[: 1 + at].tolist() for at in range(7)]
    recalls, shares = prefix_recall(queries, documents, relevant)
    for depth in range(1, 5):
        same = [[(documents[row, :depth] == q[:depth]).all() for row in range(50)] for q in queries]
        by_query = [np.mean([same[at][row] for row in rows]) for at, rows in enumerate(relevant)]
        assert recalls[depth - 1] == pytest.approx(np.mean(by_query))
        assert shares[depth - 1] == pytest.approx(np.mean(same))
