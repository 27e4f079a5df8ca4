"""Each embedding loss against independent float64 code, and its gradient by finite differences."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from steps.distill.losses.embedding import (
    L2,
    LOSSES,
    Cosine,
    EmbeddingLoss,
    QueryDistillation,
    SquaredError,
)


def pairs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(7, 5)), rng.normal(size=(7, 5))


def squared_error(one: list[float], other: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))


CASES: dict[str, tuple[EmbeddingLoss, Callable[[list[float], list[float]], float]]] = {
    "squared_error": (SquaredError(), squared_error),
    "l2": (L2(), lambda one, other: math.sqrt(squared_error(one, other))),
    "cosine": (Cosine(), lambda one, other: 1 - cosine(one, other)),
    "query_distillation": (QueryDistillation(), lambda one, other: squared_error(one, other) - cosine(one, other)),
    "query_distillation_3": (
        QueryDistillation(3),
        lambda one, other: squared_error(one, other) - 3 * cosine(one, other),
    ),
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
