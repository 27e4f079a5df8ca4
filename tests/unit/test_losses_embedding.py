"""Each embedding loss against independent float64 code, and its gradient by finite differences."""

import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from steps.core.losses import embedding
from steps.core.losses.embedding import (
    L2,
    LOSSES,
    BothTowers,
    Cosine,
    EmbeddingLoss,
    IndexWeightedSquaredError,
    QueryDistillation,
    SquaredError,
    second_moment,
)


def pairs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(7, 5)), rng.normal(size=(7, 5))


def documents(count: int = 40, dim: int = 5) -> np.ndarray:
    """Correlated, far from the origin, of unequal spread: what a covariance must get right."""
    rng = np.random.default_rng(9)
    return rng.normal(size=(count, dim)) @ rng.normal(size=(dim, dim)) * np.linspace(0.2, 2, dim) + 3


def moment() -> np.ndarray:
    """Covariance of `documents()` by its definition, scaled to trace 5."""
    rows = documents().tolist()
    means = [sum(row[i] for row in rows) / len(rows) for i in range(5)]
    entries = [
        [sum((row[i] - means[i]) * (row[j] - means[j]) for row in rows) / len(rows) for j in range(5)] for i in range(5)
    ]
    trace = sum(entries[i][i] for i in range(5))
    return np.array([[5 * entry / trace for entry in line] for line in entries])


def squared_error(one: list[float], other: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))


def index_weighted(share: float) -> Callable[[list[float], list[float]], float]:
    """Through the scores: the variance of their error over the documents, and no matrix."""
    rows = documents()
    spread = float(rows.var(axis=0).sum())

    def distance(one: list[float], other: list[float]) -> float:
        errors = [sum((a - b) * d for a, b, d in zip(one, other, row, strict=True)) for row in rows.tolist()]
        mean = sum(errors) / len(errors)
        variance = sum((error - mean) ** 2 for error in errors) / len(errors)
        return (1 - share) * squared_error(one, other) + share * variance * 5 / spread

    return distance


def both(share: float) -> IndexWeightedSquaredError:
    return IndexWeightedSquaredError(torch.tensor(moment()), share)


CASES: dict[str, tuple[EmbeddingLoss, Callable[[list[float], list[float]], float]]] = {
    "squared_error": (SquaredError(), squared_error),
    "l2": (L2(), lambda one, other: math.sqrt(squared_error(one, other))),
    "cosine": (Cosine(), lambda one, other: 1 - cosine(one, other)),
    "query_distillation": (QueryDistillation(), lambda one, other: squared_error(one, other) - cosine(one, other)),
    "query_distillation_3": (
        QueryDistillation(3),
        lambda one, other: squared_error(one, other) - 3 * cosine(one, other),
    ),
    "index_alone": (both(1), index_weighted(1)),
    "index_blended": (both(0.3), index_weighted(0.3)),
    "index_unused": (both(0), squared_error),
}
EVERY = pytest.mark.parametrize("name", sorted(CASES))


@EVERY
def test_value_equals_the_formula(name: str) -> None:
    loss, by_hand = CASES[name]
    student, teacher = pairs(1)
    value = loss(torch.tensor(student), torch.tensor(teacher))
    expected = [by_hand(one, other) for one, other in zip(student.tolist(), teacher.tolist(), strict=True)]
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(sum(expected) / 7, rel=1e-12)


@EVERY
def test_gradient(name: str) -> None:
    student, teacher = (torch.tensor(side) for side in pairs(2))
    assert torch.autograd.gradcheck(lambda s: CASES[name][0](s, teacher), (student.requires_grad_(True),))


@EVERY
def test_half_precision_is_computed_in_float32_inside_autocast_too(name: str) -> None:
    loss, _ = CASES[name]
    student, teacher = (torch.tensor(side) for side in pairs(3))
    student = student.bfloat16()
    exact = float(loss(student.double(), teacher))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(student, teacher.float())
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(exact, rel=1e-5)


@EVERY
@pytest.mark.parametrize("student", [torch.zeros(2, 4), torch.zeros(3, 5), torch.zeros(5)])
def test_different_shapes_are_refused(name: str, student: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        CASES[name][0](student, torch.zeros(2, 5))


@EVERY
def test_embeddings_without_a_batch_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"not \(batch, dim\)"):
        CASES[name][0](torch.zeros(5), torch.zeros(5))


def test_the_named_losses_need_no_arguments() -> None:
    assert {name: type(loss()) for name, loss in LOSSES.items()} == LOSSES


def test_l2_has_no_nan_gradient_where_both_are_equal() -> None:
    student = torch.ones(2, 3, requires_grad=True)
    L2()(student, torch.ones(2, 3)).backward()
    assert student.grad is not None
    assert torch.equal(student.grad, torch.zeros(2, 3))


def test_query_distillation_is_least_where_both_are_equal() -> None:
    teacher = torch.tensor(pairs(4)[0])
    assert float(QueryDistillation(2)(teacher, teacher)) == pytest.approx(-2)
    with pytest.raises(ValueError, match="at least 0"):
        QueryDistillation(-0.1)


def test_both_towers_add_the_distances_of_queries_and_of_documents() -> None:
    (student_q, teacher_q), (student_d, teacher_d) = pairs(5), pairs(6)
    expected = 0.0
    for row in range(7):
        expected += math.sqrt(squared_error(student_q[row].tolist(), teacher_q[row].tolist()))
        expected += math.sqrt(squared_error(student_d[row].tolist(), teacher_d[row].tolist()))
    given = [torch.tensor(side) for side in (student_q, teacher_q, student_d, teacher_d)]
    assert float(BothTowers()(*given)) == pytest.approx(expected / 7, rel=1e-12)
    given[0].requires_grad_(True)
    given[2].requires_grad_(True)
    assert torch.autograd.gradcheck(lambda q, d: BothTowers()(q, given[1], d, given[3]), (given[0], given[2]))
    with pytest.raises(ValueError, match="differ in shape"):
        BothTowers()(given[0], given[1], given[2], given[3][:, :4])


def test_directions_in_which_documents_do_not_differ_cost_nothing() -> None:
    flat = np.array([[1.0, 5, 0], [-1, 5, 0], [1, 5, 2], [-1, 5, 2]])  # all alike in the second dimension
    loss = IndexWeightedSquaredError(second_moment(flat))
    teacher = torch.tensor([[0.3, -0.2, 0.7]])
    error = torch.tensor([[0.0, 9.0, 0.0]])
    assert float(loss(teacher + error, teacher)) == 0
    assert np.array_equal(np.argsort(flat @ teacher[0].numpy()), np.argsort(flat @ (teacher + error)[0].numpy()))
    assert float(loss(teacher + torch.tensor([[1.0, 9.0, 0.0]]), teacher)) == pytest.approx(1.5)


def test_the_index_weights_are_a_buffer_that_follows_its_module() -> None:
    loss = both(0.5)
    assert not list(loss.parameters())
    assert [name for name, _ in loss.named_buffers()] == ["weights"]
    assert loss.to(torch.float32).weights.dtype == torch.float32
    student, teacher = pairs(7)
    assert loss(torch.tensor(student), torch.tensor(teacher)).dtype == torch.float64


@pytest.mark.parametrize(
    ("matrix", "share", "message"),
    [
        (torch.ones(3, 4), 1, "must be"),
        (2 * torch.eye(4), 1, "trace 8"),
        (torch.full((4, 4), math.nan), 1, "trace nan"),
        (torch.eye(4), 1.1, "0 to 1"),
        (torch.eye(4), -0.1, "0 to 1"),
    ],
)
def test_wrong_index_weights_are_refused(matrix: torch.Tensor, share: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IndexWeightedSquaredError(matrix, share)


def test_embeddings_of_another_width_than_the_index_are_refused() -> None:
    with pytest.raises(ValueError, match="width 3, second_moment 4"):
        IndexWeightedSquaredError(torch.eye(4))(torch.zeros(2, 3), torch.zeros(2, 3))


@pytest.mark.parametrize("at_once", [5, 35, 2**22])
def test_second_moment_is_the_scaled_covariance_whatever_is_read_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_VALUES_AT_ONCE", at_once)
    found = second_moment(documents())
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), moment(), atol=1e-6)
    np.testing.assert_allclose(second_moment(100 * documents() + 1e9).numpy(), moment(), atol=1e-6)


def test_second_moment_samples_rows_at_even_distances() -> None:
    rows = documents(41)
    np.testing.assert_array_equal(second_moment(rows, sample=14), second_moment(rows[::3]))
    np.testing.assert_array_equal(second_moment(rows, sample=13), second_moment(rows[::4]))
    np.testing.assert_array_equal(second_moment(rows, sample=41), second_moment(rows))


def test_second_moment_holds_a_part_of_the_documents_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_VALUES_AT_ONCE", 2**13)
    np.save(tmp_path / "documents.npy", np.random.default_rng(0).normal(size=(50_000, 32)).astype(np.float16))
    mapped = np.load(tmp_path / "documents.npy", mmap_mode="r")
    second_moment(mapped[:10])
    tracemalloc.start()
    try:
        second_moment(mapped)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400_000 < mapped.nbytes


@pytest.mark.parametrize(
    ("rows", "sample"),
    [
        (np.zeros(3), 9),
        (np.zeros((0, 3)), 9),
        (np.eye(3), 1),
        (np.full((4, 3), 0.1), 9),
        (np.array([[0.0, 1], [np.nan, 2]]), 9),
        (np.array([[0.0, 1], [np.inf, 2]]), 9),
    ],
)
def test_documents_without_a_covariance_are_refused(rows: np.ndarray, sample: int) -> None:
    with pytest.raises(ValueError), np.errstate(invalid="ignore"):
        second_moment(rows, sample)
