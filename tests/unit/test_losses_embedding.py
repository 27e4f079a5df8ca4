"""Each embedding loss against independent float64 code, and its gradient by finite differences."""

import math

import numpy as np
import pytest
import torch

from steps.core.losses.embedding import L2, LOSSES, Cosine, SquaredError


def pairs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(7, 5)), rng.normal(size=(7, 5))


def by_hand(name: str, student: np.ndarray, teacher: np.ndarray) -> float:
    total = 0.0
    for one, other in zip(student.tolist(), teacher.tolist(), strict=True):
        squares = sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
        if name == "squared_error":
            total += squares
        elif name == "l2":
            total += math.sqrt(squares)
        else:
            dot = sum(a * b for a, b in zip(one, other, strict=True))
            total += 1 - dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))
    return total / len(student)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_value_equals_the_formula(name: str) -> None:
    student, teacher = pairs(1)
    value = LOSSES[name]()(torch.tensor(student), torch.tensor(teacher))
    assert float(value) == pytest.approx(by_hand(name, student, teacher), rel=1e-6)


@pytest.mark.parametrize("loss", [SquaredError(), L2(), Cosine()])
def test_gradient_of_the_distance(loss: torch.nn.Module) -> None:
    student, teacher = (torch.tensor(side, dtype=torch.float64) for side in pairs(2))
    student.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda s: loss.distance(s, teacher), (student,))


def test_l2_has_no_nan_gradient_where_both_are_equal() -> None:
    student = torch.ones(2, 3, requires_grad=True)
    L2()(student, torch.ones(2, 3)).backward()
    assert student.grad is not None
    assert torch.equal(student.grad, torch.zeros(2, 3))


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        SquaredError()(torch.zeros(2, 3), torch.zeros(2, 4))
