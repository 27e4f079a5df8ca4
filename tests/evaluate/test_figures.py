"""The report's analyses against float64 loops and hand cases: distances, Proposition 1, neighbours, effort, codes."""

import math
import re
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
from steps.evaluate.drawing import draw_histograms
from steps.evaluate.figures import geometry, proposition
from steps.evaluate.figures.base import EvaluatedTower
from steps.evaluate.figures.effort import ladder, measure_effort
from steps.evaluate.figures.proposition import judged_pairs, measure_proposition, score_scale
from steps.evaluate.figures.semantic_ids import SemanticIds, centroids, prefix_recall, query_codes, read_codes
from steps.evaluate.figures.space import lengths_and_spread, neighbours, neighbours_kept
from steps.evaluate.systems import Student, document_rows, document_vectors


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

    def search(
        dataset: str, queries: np.ndarray, k: int, kind: str, threads: int
    ) -> tuple[np.ndarray, list[list[str]]]:
        scores, rows = indexes[kind].search(queries, k)
        return scores, [[ids[row] for row in line if row >= 0] for line in rows.tolist()]

    settings = {"nprobe": 1} if "IVF" in factory else {"efSearch": 16} if "HNSW" in factory else {}
    fake: Any = SimpleNamespace(
        index=lambda dataset, kind: indexes[kind],
        search=search,
        kinds=lambda dataset: ["ann", "flat"],
        documents=lambda dataset: Documents(ids, ids),
        entries={"api": {"indexes": {"ann": {"settings": settings}}}},
        folder=folder,
        held=flat,  # shards are not owned by what searches them
        parts=parts,
    )
    return fake


def judged(relevant: list[list[str]]) -> JudgedSet:
    ids = [f"q{row}" for row in range(len(relevant))]
    grades = {query: dict.fromkeys(docs, 1) for query, docs in zip(ids, relevant, strict=True)}
    return JudgedSet("api", "test", ids, ids, grades)


def test_pairs_are_the_judged_ones_and_hits_that_nobody_judged() -> None:
    judged_set = JudgedSet("api", "test", ["q0", "q1"], ["", ""], {"q0": {"a": 2, "b": 0}, "q1": {"c": 1}})
    queries, doc_ids, relevant = judged_pairs(judged_set, [["b", "x"], ["c", "a"]])
    assert (queries.tolist(), doc_ids) == ([0, 0, 0, 1, 1], ["a", "b", "x", "c", "a"])
    assert relevant.tolist() == [True, False, False, True, False]


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
    terms = measure_proposition(asking, answering, queries, documents.__getitem__, relevant)
    a, b = terms["scale"], terms["offset"]
    assert (terms["pairs"], terms["relevant"]) == (40, int(relevant.sum()))
    distance = label = student_label = gap = 0.0
    for t, s, d, y in zip(teacher.astype(float), student.astype(float), documents.astype(float), relevant, strict=True):
        says, student_says = (1 / (1 + math.exp(-(a * float(q @ d) + b))) for q in (t, s))
        distance += a * math.dist(t, s)
        label += abs(says - y)
        student_label += abs(student_says - y)
        gap += -says * math.log(student_says) - (1 - says) * math.log(1 - student_says)
        gap += y * math.log(says) + (1 - y) * math.log(1 - says)
    assert [terms["query_term"], terms["label_term"], terms["student_label_term"], terms["gap"]] == pytest.approx(
        [distance / 40, label / 40, student_label / 40, gap / 40], rel=1e-5
    )
    longest = max(math.hypot(a * float(np.linalg.norm(q)), b) for q in (*teacher, *student))
    expected = 2 * math.sqrt(2) * terms["query_term"] + longest * math.sqrt(2) * terms["label_term"]
    assert terms["bound"] == pytest.approx(expected, rel=1e-5)
    assert terms["gap"] <= terms["bound"]


def test_vectors_of_documents_come_from_every_shard() -> None:
    vectors = unit(30, 4, 0)
    for shards in (1, 3):
        sharded = release(vectors, "Flat", shards)
        rows = document_rows(sharded, "api", ["d29", "d0", "gone", "d11"])
        assert rows.tolist() == [29, 0, -1, 11]
        np.testing.assert_array_equal(document_vectors(sharded, "api", rows[rows >= 0]), vectors[[29, 0, 11]])


def test_neighbours_lengths_and_spread() -> None:
    teacher = unit(60, 5, 1)
    student = 2 * teacher + 0.3 * unit(60, 5, 2)
    near = [sorted(set(range(60)) - {q}, key=lambda r, q=q: -float(teacher[q] @ teacher[r]))[:10] for q in range(60)]
    assert [sorted(row) for row in neighbours(teacher).tolist()] == [sorted(row) for row in near]
    shares = neighbours_kept(teacher, student, [["a", "b"]] * 60, [["b", "c"]] * 60)
    assert shares["documents_kept"] == 0.5 and 0.5 < shares["queries_kept"] < 1
    few = neighbours_kept(teacher[:11], teacher[:11], [["a"]], [["a"]])
    assert "queries_kept" not in few, "all others are neighbours of each"
    lengths = np.linalg.norm(student, axis=1)
    directions = student / lengths[:, None]
    assert lengths_and_spread(student, 0) == pytest.approx(
        {
            "norm_mean": lengths.mean(),
            "norm_std": lengths.std(),
            "anisotropy": (directions @ directions.T)[np.triu_indices(60, 1)].mean(),
        },
        rel=1e-4,
    )
    assert set(lengths_and_spread(teacher[:1], 0)) == {"norm_mean", "norm_std"}


def test_effort_is_the_least_setting_that_loses_a_hundredth_and_the_index_stays_as_served() -> None:
    vectors = unit(2000, 8, 3)
    indexed = release(vectors)
    judged_set = judged([[f"d{row}"] for row in range(200)])
    near = vectors[:200] + 0.25 * unit(200, 8, 4)
    result = measure_effort(indexed, judged_set, near)
    assert result is not None and (result["knob"], result["served"], result["most"]) == ("nprobe", 1, 16)
    ann = indexed.index("api", "ann")
    assert faiss.extract_index_ivf(ann).nprobe == 1

    def lost(lists: int) -> float:
        """Share of the queries' reciprocal log rank, as each has one relevant document, against all lists."""
        gains = []
        for probed in (lists, 16):
            rows = ann.search(near, 10, params=faiss.SearchParametersIVF(nprobe=probed))[1]
            ranks = [np.flatnonzero(line == query) for query, line in enumerate(rows)]
            gains.append(sum(1 / math.log2(rank[0] + 2) for rank in ranks if len(rank)))
        return 1 - gains[0] / gains[1]

    needed = result["needed"]
    below = {3: 2, 4: 3, 6: 4, 8: 6, 12: 8, 16: 12, 2: 1}[needed]
    assert lost(needed) == pytest.approx(result["lost"]) and result["lost"] <= 0.01 < lost(below)


def test_indexes_without_lists_have_another_knob_or_none() -> None:
    vectors = unit(200, 8, 0)
    graph = release(vectors, "HNSW8")
    result = measure_effort(graph, judged([["d1"], ["d5"]]), vectors[[1, 5]])
    assert result is not None and (result["knob"], result["needed"]) == ("efSearch", 16)
    assert ladder(release(vectors, "SQ8").index("api", "ann")) is None
    assert measure_effort(release(vectors, "SQ8"), judged([["d1"]]), vectors[[1]]) is None
    refined = faiss.index_factory(8, "PCA4,IVF4,SQ8,RFlat", faiss.METRIC_INNER_PRODUCT)
    refined.train(vectors)
    assert ladder(refined) == ("nprobe", [1, 2, 3, 4])


def test_an_index_that_never_finds_what_is_relevant_is_told() -> None:
    vectors = unit(100, 8, 0)
    sound = release(vectors, "IVF4,Flat")
    unrelated = release(unit(100, 8, 9), "IVF4,Flat")
    broken: Any = SimpleNamespace(**vars(sound))
    broken.search = lambda dataset, queries, k, kind, *threads: (sound if kind == "flat" else unrelated).search(
        dataset, queries, k, kind, *threads
    )
    result = measure_effort(broken, judged([["d1"], ["d2"]]), vectors[[1, 2]])
    assert result is not None and "needed" not in result and result["lost"] > 0.5


def test_centroids_are_found_again_and_queries_get_the_codes_of_what_is_near(tmp_path: Path) -> None:
    coarse = np.array([[10.0, 0], [-10, 0]], dtype=np.float32)
    fine = np.array([[0.0, 1], [0, -1]], dtype=np.float32)
    codes = np.array([[i % 2, i // 2 % 2] for i in range(40)])
    vectors = coarse[codes[:, 0]] + fine[codes[:, 1]]
    books = centroids(vectors, codes, 3)
    np.testing.assert_allclose(books[:, :2], [coarse, fine], atol=1e-6)
    assert np.isnan(books[:, 2]).all(), "a code that no document has"
    queries = np.array([[9.0, 3], [-20, -0.1]])
    assert query_codes(queries, books).tolist() == [[0, 0], [1, 1]]

    folder = tmp_path / "index" / "api"
    folder.mkdir(parents=True)
    columns = {f"level_{level + 1}": pa.array(codes[:, level].astype(np.int16)) for level in range(2)}
    pq.write_table(pa.table({"doc_id": [f"d{row}" for row in range(40)], **columns}), folder / "semantic_ids.parquet")
    indexed = release(vectors, "Flat", folder=tmp_path)
    assert read_codes(indexed, "api", 0) is not None and read_codes(release(vectors, "Flat"), "api", 0) is None
    # d0 has the first query's codes, d2 only the first of them, d1 none; the second query has no document
    tower: Any = Student("s", "", indexed, lambda texts: queries)
    indexed.encode = lambda texts: queries  # type: ignore[method-assign]
    recalls = SemanticIds().measure(EvaluatedTower(tower, judged([["d0", "d2", "d1"], ["gone"]]), queries, 0))
    assert recalls == {
        "recall": pytest.approx({"1": 2 / 3, "2": 1 / 3}),
        "documents": pytest.approx({"1": 1 / 2, "2": 1 / 4}),
    }


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


def distances_of(teacher: np.ndarray, student: np.ndarray) -> dict[str, Any]:
    """What the figure `geometry` has of a student whose embeddings these are."""
    tower: Any = Student("s", "", SimpleNamespace(encode=lambda texts: student), lambda texts: student)  # type: ignore[arg-type]
    judged_set = judged([["d0"]] * len(teacher))
    figure = geometry.DistanceToTheTeacher()
    distances = figure.measure(EvaluatedTower(tower, judged_set, teacher, 0))
    assert distances is not None
    return distances | figure.merge({"s": {"api": distances}}, {}, 0)["api"]["s"]


def test_distances_to_the_teacher_and_of_pairs_by_hand() -> None:
    teacher, student, pairs = unit(12, 5, 1), unit(12, 5, 2), geometry.draw_pairs(12, 1000, 0)
    distances = distances_of(teacher, student)
    assert distances["query_term"] == pytest.approx(
        np.mean([math.dist(*both) for both in zip(student, teacher, strict=True)])
    )
    expected = [math.dist(teacher[q], teacher[r]) - math.dist(student[q], student[r]) for q, r in pairs]
    assert distances["differences"] == pytest.approx(expected, abs=1e-6)
    quantiles = [np.mean(expected), *np.quantile(expected, [0.05, 0.5, 0.95])]
    assert [distances[f"pairs_{name}"] for name in ("mean", "p05", "p50", "p95")] == pytest.approx(quantiles, abs=1e-6)
    assert distances_of(teacher[:1], student[:1])["pairs_mean"] is None, "one query has no pairs"


def test_the_teacher_itself_moves_nothing_a_rotation_no_pair_and_a_narrow_cone_brings_pairs_together() -> None:
    teacher = unit(12, 5, 0)
    same = distances_of(teacher, teacher)
    assert same["query_term"] == 0 and not any(same["differences"]) and len(same["differences"]) == 66
    rotation, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(5, 5)))
    rotated = distances_of(teacher, teacher @ rotation)
    assert rotated["query_term"] > 0.1 and rotated["differences"] == pytest.approx([0] * 66, abs=1e-6)
    assert distances_of(teacher, teacher + 3)["pairs_p05"] > 0


def test_few_pairs_are_all_taken_and_many_drawn_alike() -> None:
    draw_pairs = geometry.draw_pairs
    assert sorted(map(tuple, draw_pairs(5, 10, 0).tolist())) == [(q, r) for q in range(5) for r in range(q + 1, 5)]
    assert draw_pairs(1, 10, 0).shape == (0, 2)
    assert (draw_pairs(6, 14, 3) == draw_pairs(6, 14, 3)).all() and (draw_pairs(6, 14, 3) != draw_pairs(6, 14, 4)).any()
    pairs = draw_pairs(201, 20_000, 1)  # more than there are pairs of 200 rows would be all of them
    assert (pairs[:, 0] != pairs[:, 1]).all()
    seen = np.apply_along_axis(np.bincount, 0, pairs, minlength=201)
    assert seen.min() > 50 and seen.max() < 160, "each row about a hundred times"


def test_students_are_normalised_where_the_teacher_is() -> None:
    teacher, long = unit(12, 5, 0), 3 * unit(12, 5, 2)
    long[0] = 0
    assert np.linalg.norm(geometry.comparable(teacher, long)[1], axis=1) == pytest.approx([0.0] + [1.0] * 11)
    assert geometry.comparable(3 * teacher, long)[1] is long


def bars(svg: str) -> list[tuple[float, float]]:
    """(centre, height) of each bar that has one, in points."""
    boxes = re.findall(r'<path d="M ([\d.]+) ([\d.]+) \nL ([\d.]+) [\d.]+ \nL [\d.]+ ([\d.]+)[^"]*z\n"', svg)
    spans = [((float(x) + float(right)) / 2, float(low) - float(high)) for x, low, right, high in boxes]
    return [(centre, height) for centre, height in spans if height > 0]


def test_bars_hold_all_values_in_shares_of_their_own_panel() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(0, 0.1, 5000), [50.0]])
    ours, theirs = bars(draw_histograms({"2l": values}, "x")), bars(draw_histograms({"2l": np.tile(values, 3)}, "x"))
    assert np.array(ours) == pytest.approx(np.array(theirs))
    heights = np.array([height for _, height in ours])
    limit = np.quantile(np.abs(values), 0.999)
    counts, _ = np.histogram(np.clip(values, -limit, limit), 41, (-limit, limit))
    assert heights / heights.sum() == pytest.approx(counts[counts > 0] / counts.sum(), abs=1e-4)
    [(centre, _)] = bars(svg := draw_histograms({"2l": np.zeros(50)}, "difference"))
    [line] = re.findall(r'<path d="M ([\d.]+) [\d.]+ *\n? *L \1 [\d.]+[^"]*" [^>]*stroke-dasharray: 1,2', svg)
    assert centre == pytest.approx(float(line), abs=0.01), "the line at zero"
