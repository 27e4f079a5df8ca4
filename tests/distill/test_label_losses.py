"""Label losses against Eq. 8 and 9 written out candidate by candidate, and their gradients by finite differences."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from steps.distill.losses.base import Outputs, Targets
from steps.distill.losses.label import binary_cross_entropy, softmax_cross_entropy

Rows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def mean(rows: Rows, scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of the rows with something to learn from: a label, or for the binary loss a candidate."""
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    values = rows(scores, labels, mask)
    counted = (labels.nan_to_num() != 0) & mask if rows is softmax_cross_entropy else mask
    return values.sum() / counted.any(dim=1).sum().clamp(min=1)


EVERY = pytest.mark.parametrize("loss", [softmax_cross_entropy, binary_cross_entropy])
SCORES = np.random.default_rng(1).normal(scale=2, size=(4, 5))
LABELS = np.array([[1, 0, 0, 0, 0], [0, 0.5, 0.25, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1]])
MASK = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 1, 1, 1, 0]], dtype=bool)


def softmax_by_hand(scores: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> float:
    """Eq. 8: a mean over the rows with a label on a candidate that counts."""
    rows = []
    for some, wanted, kept in zip(scores.tolist(), labels.tolist(), mask.tolist(), strict=True):
        places = [j for j in range(len(some)) if kept[j]]
        if any(wanted[j] for j in places):
            denominator = sum(math.exp(some[j]) for j in places)
            rows.append(-sum(wanted[j] * math.log(math.exp(some[j]) / denominator) for j in places))
    return sum(rows) / len(rows)


def binary_by_hand(scores: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> float:
    """Eq. 9: a mean over the rows with a candidate that counts."""
    rows = []
    for some, wanted, kept in zip(scores.tolist(), labels.tolist(), mask.tolist(), strict=True):
        places = [j for j in range(len(some)) if kept[j]]
        terms = [
            wanted[j] * math.log(1 / (1 + math.exp(-some[j]))) + (1 - wanted[j]) * math.log(1 / (1 + math.exp(some[j])))
            for j in places
        ]
        if places:
            rows.append(-sum(terms))
    return sum(rows) / len(rows)


BY_HAND = {softmax_cross_entropy: softmax_by_hand, binary_cross_entropy: binary_by_hand}


@EVERY
@pytest.mark.parametrize("mask", [np.ones_like(MASK), MASK])
def test_value_equals_the_formula(loss: Rows, mask: np.ndarray) -> None:
    value = mean(loss, torch.tensor(SCORES), torch.tensor(LABELS), None if mask.all() else torch.tensor(mask))
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(BY_HAND[loss](SCORES, LABELS, mask), rel=1e-12)


@EVERY
@pytest.mark.parametrize("mask", [None, torch.tensor(MASK)])
def test_gradient(loss: Rows, mask: torch.Tensor | None) -> None:
    scores = torch.tensor(SCORES, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: mean(loss, s, torch.tensor(LABELS), mask), (scores,))


@EVERY
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_candidates_change_neither_value_nor_gradient(loss: Rows, broken: float) -> None:
    mask = torch.tensor(MASK)
    scores = torch.tensor(SCORES).masked_fill(~mask, broken).requires_grad_(True)
    value = mean(loss, scores, torch.tensor(LABELS).masked_fill(~mask, math.nan), mask)
    value.backward()
    assert value.item() == float(mean(loss, torch.tensor(SCORES), torch.tensor(LABELS), mask))
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert not scores.grad[~mask].any()
    assert scores.grad[torch.tensor([0, 1, 3])][mask[torch.tensor([0, 1, 3])]].all()


@EVERY
def test_rows_without_a_candidate_are_not_in_the_mean(loss: Rows) -> None:
    mask = torch.tensor(MASK)
    mask[1] = False
    rest = torch.tensor([0, 2, 3])
    scores, labels = torch.tensor(SCORES), torch.tensor(LABELS)
    assert float(mean(loss, scores, labels, mask)) == pytest.approx(
        float(mean(loss, scores[rest], labels[rest], mask[rest]))
    )


@EVERY
def test_a_batch_with_nothing_to_learn_from_is_worth_0_and_has_a_gradient_of_0(loss: Rows) -> None:
    scores = torch.tensor(SCORES, requires_grad=True)
    value = mean(loss, scores, torch.tensor(LABELS), torch.zeros(4, 5, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.zeros(4, 5, dtype=torch.float64))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_extreme_scores_stay_finite(loss: Rows, dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([[0, 1, 0], [1, 0, 0]])
    value = mean(loss, scores, labels, torch.tensor([[True, True, False], [True, True, True]]))
    value.backward()
    size = abs(float(scores.detach()[0, 0]))
    of_row = {softmax_cross_entropy: (2 * size, 2 * size + math.log(2)), binary_cross_entropy: (2 * size, 3 * size)}
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert value.item() == pytest.approx(sum(of_row[loss]) / 2, rel=1e-6)
    assert torch.isfinite(scores.grad).all()


@EVERY
def test_half_precision_is_computed_in_float32(loss: Rows) -> None:
    scores = torch.tensor(SCORES).bfloat16()
    value = mean(loss, scores, torch.tensor(LABELS).float(), torch.tensor(MASK))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(BY_HAND[loss](scores.double().numpy(), LABELS, MASK), rel=1e-6)


@EVERY
@pytest.mark.parametrize("labels", [torch.zeros(4, 4), torch.zeros(3, 5), torch.zeros(5)])
def test_labels_of_another_shape_are_refused(loss: Rows, labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        mean(loss, torch.zeros(4, 5), labels)


@EVERY
def test_scores_without_a_batch_are_refused(loss: Rows) -> None:
    with pytest.raises(ValueError, match=r"not \(batch, candidates\)"):
        mean(loss, torch.zeros(5), torch.zeros(5))


@EVERY
@pytest.mark.parametrize("mask", [torch.ones(5, dtype=torch.bool), torch.ones(4, 5), torch.ones(4, 5, dtype=torch.int)])
def test_masks_of_another_shape_or_kind_are_refused(loss: Rows, mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"mask .* must be \(4, 5\) torch.bool"):
        mean(loss, torch.zeros(4, 5), torch.zeros(4, 5), mask)


def test_losses_share_the_students_scores_of_the_same_documents_alone() -> None:
    draw = torch.Generator().manual_seed(3)
    queries, documents, others = (torch.randn(4, 6, generator=draw) for _ in range(3))
    outputs = Outputs(queries=queries, raw=queries)
    targets = Targets(queries, documents, cosine=False)
    scores = outputs.scores(targets)
    assert outputs.scores(targets.fixed()) is scores
    for given in (targets, replace(targets, documents=others)):
        torch.testing.assert_close(outputs.scores(given), queries @ given.documents.T)
    short = outputs.truncate(3).scores(targets.truncate(3))
    assert not torch.allclose(short, scores)
