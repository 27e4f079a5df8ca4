"""Distances to the teacher and Fig. 4's differences against float64 loops, and what is drawn of them."""

import math
import re

import numpy as np
import pytest

from steps.core.judged import JudgedSet
from steps.evaluate import geometry
from steps.evaluate.drawing import draw_histograms
from steps.evaluate.geometry import Geometry, comparable, draw_pairs, measure_geometry, pair_differences, query_term
from steps.evaluate.scoring import score_and_keep
from steps.evaluate.systems import remembering

KEYS = ["query_term", "pairs_mean", "pairs_p05", "pairs_p50", "pairs_p95"]


def embeddings(count: int = 12, dim: int = 5, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(one, other, strict=True)))


def test_query_term_by_hand() -> None:
    teacher, student = embeddings(seed=1), embeddings(seed=2)
    expected = sum(distance(s, t) for s, t in zip(student, teacher, strict=True)) / len(teacher)
    assert query_term(teacher, student) == pytest.approx(expected, rel=1e-6)


def test_pair_differences_by_hand() -> None:
    teacher, student, pairs = embeddings(seed=1), embeddings(seed=2), draw_pairs(12, 1000, 0)
    expected = [distance(teacher[q], teacher[r]) - distance(student[q], student[r]) for q, r in pairs]
    assert pair_differences(teacher, student, pairs) == pytest.approx(expected, abs=1e-6)


def test_few_pairs_are_all_taken_and_many_drawn_alike() -> None:
    assert sorted(map(tuple, draw_pairs(5, 10, 0).tolist())) == [(q, r) for q in range(5) for r in range(q + 1, 5)]
    assert draw_pairs(1, 10, 0).shape == (0, 2)
    drawn = draw_pairs(6, 14, 3)
    assert drawn.shape == (14, 2)
    assert (drawn == draw_pairs(6, 14, 3)).all() and (drawn != draw_pairs(6, 14, 4)).any()
    # more than there are pairs of 200 rows would be all of them
    first, second = draw_pairs(201, 20_000, 1).T
    assert (first != second).all()
    for column in (first, second):
        seen = np.bincount(column, minlength=201)
        assert seen.min() > 50 and seen.max() < 160, "each row about a hundred times"


def measured(teacher: np.ndarray, student: np.ndarray) -> Geometry:
    return measure_geometry(teacher, student, 0)


def test_the_teacher_as_its_own_student_has_no_bias_and_moves_no_pair() -> None:
    found = measured(embeddings(), embeddings())
    assert found.query_term == 0
    assert len(found.differences) == 66 and not found.differences.any()
    assert found.as_dict() == dict.fromkeys(KEYS, 0.0)


def test_a_rotated_student_is_far_away_but_keeps_every_distance() -> None:
    rotation, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(5, 5)))
    found = measured(embeddings(), embeddings() @ rotation)
    assert found.query_term > 0.1
    assert found.differences == pytest.approx(0, abs=1e-6)


def test_a_student_that_brings_queries_together_is_right_of_0() -> None:
    teacher = np.concatenate([np.eye(4), -np.eye(4)])
    together = teacher + 3 * np.ones(4)
    found = measured(teacher, together / np.linalg.norm(together, axis=1, keepdims=True)).as_dict()
    assert list(found) == KEYS
    assert 0 < found["pairs_p05"] <= found["pairs_p50"] <= found["pairs_p95"]
    assert found["pairs_p05"] < found["pairs_mean"]


def test_quantiles_are_those_of_numpys_definition() -> None:
    found = Geometry(0.1, np.arange(101) / 100).as_dict()
    assert [found[key] for key in KEYS] == pytest.approx([0.1, 0.5, 0.05, 0.5, 0.95])


def test_one_query_has_no_pairs() -> None:
    found = measured(embeddings(1), embeddings(1)).as_dict()
    assert [found[key] for key in KEYS[1:]] == [None] * 4


def test_students_are_normalised_where_the_teacher_is() -> None:
    unit, long = embeddings(), 3 * embeddings(seed=2)
    long[0] = 0
    teacher, student = comparable(unit, long)
    assert teacher == pytest.approx(unit)
    assert np.linalg.norm(student, axis=1) == pytest.approx([0.0] + [1.0] * 11)
    assert comparable(3 * unit, long)[1] is long


def test_the_best_hits_of_every_query_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.evaluate.scoring._CHUNK", 2)
    ids = [f"d{row}" for row in range(30)]
    values = np.linspace(1, 0, 30)
    asked = JudgedSet("api", "test", ["q0", "q1", "q2"], ["x"] * 3, {f"q{row}": {"d0": 1} for row in range(3)})
    _, (scores, doc_ids) = score_and_keep(
        "m", lambda dataset, texts, k: ([values] * len(texts), [ids] * len(texts)), asked, 30, ["nDCG@10"]
    )
    assert doc_ids == [ids[:10]] * 3
    assert [each.tolist() for each in scores] == [values[:10].tolist()] * 3
    assert all(each.base is None for each in scores), "no view of all hits"


def test_a_text_is_read_once() -> None:
    read: list[str] = []

    def encode(texts: list[str]) -> np.ndarray:
        read.extend(texts)
        return np.array([[float(len(text)), 1.0] for text in texts])

    embed = remembering(encode)
    assert embed(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert embed(["bb", "ccc"]).tolist() == [[2, 1], [3, 1]]
    assert read == ["a", "bb", "ccc"]


def bars(drawn: str) -> list[tuple[float, float]]:
    """(centre, height) of each bar that has one, in points."""
    boxes = re.findall(r'<path d="M ([\d.]+) ([\d.]+) \nL ([\d.]+) [\d.]+ \nL [\d.]+ ([\d.]+)[^"]*z\n"', drawn)
    found = [((float(x) + float(right)) / 2, float(low) - float(high)) for x, low, right, high in boxes]
    return [(centre, height) for centre, height in found if height > 0]


def test_a_histogram_of_zeros_is_one_bar_on_the_line_at_zero() -> None:
    drawn = draw_histograms({"2l": np.zeros(50)}, "difference")
    [(centre, _)] = bars(drawn)
    [line] = re.findall(r'<path d="M ([\d.]+) [\d.]+ *\n? *L \1 [\d.]+[^"]*" [^>]*stroke-dasharray: 1,2', drawn)
    assert centre == pytest.approx(float(line), abs=0.01)


@pytest.mark.medium
def test_bars_hold_all_values_in_shares_of_their_own_panel() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(0, 0.1, 5000), [50.0]])
    ours, theirs = bars(draw_histograms({"2l": values}, "x")), bars(draw_histograms({"2l": np.tile(values, 3)}, "x"))
    assert np.array(ours) == pytest.approx(np.array(theirs))
    heights = np.array([height for _, height in ours])
    counts, _ = np.histogram(
        np.clip(values, *(limits := np.quantile(np.abs(values), 0.999) * np.array([-1, 1]))), 41, limits
    )
    assert counts.sum() == len(values), "the one far away is in the last bar"
    assert heights / heights.sum() == pytest.approx(counts[counts > 0] / counts.sum(), abs=1e-4)


@pytest.mark.medium
@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_every_student_has_a_panel_and_ids_differ(count: int) -> None:
    drawn = draw_histograms({f"student {row}": np.array([0.1, -0.2]) for row in range(count)}, "difference")
    assert re.findall(r">(student \d)<", drawn) == [f"student {row}" for row in range(count)]
    assert "#ffffff" not in drawn and "#000000" not in drawn, "panels without a student are not drawn"
    ids = re.findall(r'\bid="([^"]*)"', drawn)
    assert len(ids) == len(set(ids))
    assert draw_histograms({"alone": np.array([])}, "difference").count("<svg") == 1


def test_pairs_are_limited_by_the_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "PAIRS", 7)
    assert len(measured(embeddings(), embeddings(seed=1)).differences) == 7
