"""Each embedding loss against independent float64 code, and its gradient by finite differences."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from steps.distill.losses.base import Batch, Loss, Outputs, Targets
from steps.distill.losses.embedding import DocumentEmbedding, Embedding, QueryDistillation

NOTHING = torch.zeros((7, 0), dtype=torch.bool)
BATCH = Batch(NOTHING, NOTHING, NOTHING)


def pairs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(7, 5)), rng.normal(size=(7, 5))


def squared_error(first: list[float], second: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(first, second, strict=True))


def cosine(first: list[float], second: list[float]) -> float:
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    return dot / math.sqrt(sum(a * a for a in first)) / math.sqrt(sum(b * b for b in second))


def values(loss: Loss, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Both sides as they are: neither is normalised."""
    targets = Targets(teacher, teacher[:0], cosine=True, provided={"qkd": teacher.norm(dim=-1)})
    return loss.values(Outputs(student, student), targets, BATCH)


def qkd(student: list[float], teacher: list[float]) -> float:
    return squared_error(student, teacher) - cosine(student, teacher)


CASES: dict[str, tuple[Loss, Callable[[list[float], list[float]], float]]] = {
    "squared_error": (Embedding(kind="embedding"), squared_error),
    "l2": (Embedding(kind="embedding", distance="l2"), lambda a, b: math.sqrt(squared_error(a, b))),
    "cosine": (Embedding(kind="embedding", distance="cosine"), lambda a, b: 1 - cosine(a, b)),
    "qkd": (QueryDistillation(kind="qkd"), qkd),
    "qkd_normalised": (QueryDistillation(kind="qkd", magnitude=False), qkd),
}
EVERY = pytest.mark.parametrize("name", sorted(CASES))


@EVERY
def test_each_value_equals_the_formula_and_its_gradient_is_right(name: str) -> None:
    loss, by_hand = CASES[name]
    student, teacher = (torch.tensor(side) for side in pairs(1))
    losses = values(loss, student, teacher)
    expected = [by_hand(a, b) for a, b in zip(student.tolist(), teacher.tolist(), strict=True)]
    assert losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda s: values(loss, s, teacher), (student.requires_grad_(True),))
    equal = torch.ones(2, 3, requires_grad=True)
    values(loss, equal, torch.ones(2, 3)).sum().backward()
    assert equal.grad is not None and equal.grad.abs().max() < 1e-6  # no NaN, as a root's slope would be
    with pytest.raises(ValueError, match="differ in shape"):
        values(loss, torch.zeros(3, 5), torch.zeros(2, 5))


@EVERY
def test_half_precision_is_computed_in_float32_inside_autocast_too(name: str) -> None:
    loss, _ = CASES[name]
    student, teacher = (torch.tensor(side) for side in pairs(3))
    student = student.bfloat16()
    exact = values(loss, student.double(), teacher).tolist()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = values(loss, student, teacher.float())
    assert losses.dtype == torch.float32
    assert losses.tolist() == pytest.approx(exact, rel=1e-5, abs=1e-6)


def test_query_distillation_compares_lengths_before_normalisation() -> None:
    student, teacher = (torch.tensor(side) for side in pairs(4))
    unit = torch.nn.functional.normalize(teacher, dim=1)
    outputs = Outputs(queries=torch.nn.functional.normalize(student, dim=1), raw=student)
    targets = Targets(unit, unit[:0], cosine=True, provided={"qkd": teacher.norm(dim=1)})
    with_lengths = QueryDistillation(kind="qkd").values(outputs, targets, BATCH)
    expected = [qkd(a, b) for a, b in zip(student.tolist(), teacher.tolist(), strict=True)]
    assert with_lengths.tolist() == pytest.approx(expected, rel=1e-12)
    without = QueryDistillation(kind="qkd", magnitude=False).values(outputs, targets, BATCH)
    directions = [2 - 3 * cosine(a, b) for a, b in zip(student.tolist(), teacher.tolist(), strict=True)]
    assert without.tolist() == pytest.approx(directions, rel=1e-12)  # 2 - (2 + lambda) cos: lengths say nothing


def test_document_embeddings_are_compared_once_for_all_texts() -> None:
    student_documents, frozen = (torch.tensor(side) for side in pairs(6))
    queries = torch.zeros(3, 5, dtype=torch.float64)
    loss = DocumentEmbedding(kind="document_embedding", distance="l2")
    losses = loss.values(Outputs(queries, queries, student_documents), Targets(queries, frozen, cosine=True), BATCH)
    rows = zip(student_documents.tolist(), frozen.tolist(), strict=True)
    mean = sum(math.sqrt(squared_error(a, b)) for a, b in rows) / 7
    assert losses.tolist() == pytest.approx([mean] * 3)
