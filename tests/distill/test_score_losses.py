"""Score losses against Eq. 10 to 12 written out candidate by candidate, and their gradients by finite differences."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from steps.distill.losses import losses
from steps.distill.losses.base import Batch, Need, Outputs, Scores, Targets, Units
from steps.distill.losses.score import (
    ScoreBinary,
    ScoreKl,
    ScoreLoss,
    ScoreMargin,
    ScoreSoftmax,
    ScoreSquared,
    telling_temperature,
)
from steps.distill.targets import units_of

KINDS = [ScoreSoftmax, ScoreBinary, ScoreSquared, ScoreKl, ScoreMargin]


def loss_of(kind: type[ScoreLoss], temperature: float = 1.0, **knobs: Any) -> ScoreLoss:
    return kind(kind=kind.model_fields["kind"].annotation.__args__[0], temperature=temperature, **knobs)


def mean(
    loss: ScoreLoss, student: torch.Tensor, teacher: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean of the rows with a candidate that counts."""
    mask = torch.ones_like(student, dtype=torch.bool) if mask is None else mask
    return loss.rows(student, teacher, mask).sum() / mask.any(dim=1).sum().clamp(min=1)


EVERY = pytest.mark.parametrize("kind", KINDS)
STUDENT, TEACHER = np.random.default_rng(2).normal(scale=2, size=(2, 4, 5))
MASK = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 0]], dtype=bool)


def row_by_hand(kind: type[ScoreLoss], student: list[float], teacher: list[float], temperature: float) -> float:
    s, t = ([score / temperature for score in side] for side in (student, teacher))
    if kind is ScoreSquared:
        return sum((b - a) ** 2 for a, b in zip(s, t, strict=True))
    if kind is ScoreBinary:
        total = 0.0
        for a, b in zip(s, t, strict=True):
            total -= 1 / (1 + math.exp(-b)) * math.log(1 / (1 + math.exp(-a)))
            total -= 1 / (1 + math.exp(b)) * math.log(1 / (1 + math.exp(a)))
        return total
    if kind is ScoreMargin:
        best = max(range(len(t)), key=t.__getitem__)
        margins = [(s[best] - a) - (t[best] - b) for a, b in zip(s, t, strict=True)]
        return sum(margin**2 for margin in margins) / max(1, len(margins) - 1)  # the best one's is 0
    below_s, below_t = sum(map(math.exp, s)), sum(map(math.exp, t))
    cross = -sum(math.exp(b) / below_t * math.log(math.exp(a) / below_s) for a, b in zip(s, t, strict=True))
    entropy = -sum(math.exp(b) / below_t * math.log(math.exp(b) / below_t) for b in t)
    return cross - entropy if kind is ScoreKl else cross


def by_hand(kind: type[ScoreLoss], mask: np.ndarray, temperature: float, student: np.ndarray = STUDENT) -> float:
    """Mean over the rows with a candidate that counts; the others are left out of the lists."""
    rows = []
    for row in range(len(student)):
        columns = [j for j in range(student.shape[1]) if mask[row, j]]
        if columns:
            student_scores, teacher_scores = ([float(side[row, j]) for j in columns] for side in (student, TEACHER))
            rows.append(row_by_hand(kind, student_scores, teacher_scores, temperature))
    return sum(rows) / len(rows)


@EVERY
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("mask", [np.ones_like(MASK), MASK], ids=["all", "masked"])
def test_value_equals_the_formula_and_its_gradients_are_right(
    kind: type[ScoreLoss], temperature: float, mask: np.ndarray
) -> None:
    sides = torch.tensor(STUDENT, requires_grad=True), torch.tensor(TEACHER, requires_grad=True)
    loss, optional_mask = loss_of(kind, temperature), None if mask.all() else torch.tensor(mask)
    value = mean(loss, *sides, optional_mask)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(by_hand(kind, mask, temperature), rel=1e-12)
    assert torch.autograd.gradcheck(lambda s, t: mean(loss, s, t, optional_mask), sides)


@EVERY
@pytest.mark.parametrize("broken", [math.nan, -math.inf, 1e30])
def test_masked_candidates_change_neither_value_nor_gradient(kind: type[ScoreLoss], broken: float) -> None:
    mask = torch.tensor(MASK)
    sides = [torch.tensor(side).masked_fill(~mask, broken).requires_grad_(True) for side in (STUDENT, TEACHER)]
    value = mean(loss_of(kind), *sides, mask)
    assert value.item() == float(mean(loss_of(kind), torch.tensor(STUDENT), torch.tensor(TEACHER), mask))
    for slope in torch.autograd.grad(value, sides):
        assert torch.isfinite(slope).all() and not slope[~mask].any() and slope[mask].all()
    nothing = mean(loss_of(kind), *sides, torch.zeros_like(mask))
    assert nothing.item() == 0 and not torch.autograd.grad(nothing, sides[0])[0].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (loss_of(ScoreSoftmax), lambda size: 2 * size),
        (loss_of(ScoreBinary), lambda size: 2 * size),
        (loss_of(ScoreSquared), lambda size: 2 * (2 * size) ** 2),
        (loss_of(ScoreSoftmax, 0.01), lambda size: 200 * size),  # above what float16 holds
    ],
)
def test_extreme_scores_stay_finite(loss: ScoreLoss, expected, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    student = torch.tensor([[1e4, -1e4, -1e4]], dtype=dtype, requires_grad=True)
    teacher = torch.tensor([[-1e4, 1e4, 1e4]], dtype=dtype)
    value = mean(loss, student, teacher, torch.tensor([[True, True, False]]))
    value.backward()
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert value.item() == pytest.approx(expected(abs(float(student.detach()[0, 0]))), rel=1e-6)
    assert torch.isfinite(student.grad).all()


@EVERY
def test_half_precision_is_computed_in_float32(kind: type[ScoreLoss]) -> None:
    student = torch.tensor(STUDENT).bfloat16()
    value = mean(loss_of(kind, 0.5), student, torch.tensor(TEACHER).float(), torch.tensor(MASK))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(by_hand(kind, MASK, 0.5, student.double().numpy()), rel=1e-6)


@EVERY
def test_the_teachers_scores_have_a_temperature_of_their_own(kind: type[ScoreLoss]) -> None:
    student, teacher, mask = torch.tensor(STUDENT), torch.tensor(TEACHER), torch.tensor(MASK)
    losses = loss_of(kind, 0.5, teacher_temperature=3.0).rows(student, teacher, mask)
    torch.testing.assert_close(losses, loss_of(kind, 0.5).rows(student, teacher / 6, mask), rtol=1e-12, atol=0)
    for row in np.flatnonzero(MASK.any(axis=1)).tolist():  # by hand: the sides are scaled before Eq. 10 to 12 of T = 1
        student_scores, teacher_scores = (
            (side[row, MASK[row]] / scale).tolist() for side, scale in ((STUDENT, 0.5), (TEACHER, 3.0))
        )
        assert float(losses[row]) == pytest.approx(row_by_hand(kind, student_scores, teacher_scores, 1.0), rel=1e-9)


def test_every_loss_of_scores_takes_the_temperature_that_score_suggests() -> None:
    taking = [loss for loss in losses() if Need.SCORES in loss.needs]
    assert len(taking) > 5 and all("teacher_temperature" in loss.model_fields for loss in taking)


def scored(
    values: np.ndarray, mask: np.ndarray, label: np.ndarray, is_own: np.ndarray
) -> tuple[Outputs, Targets, Batch]:
    """A student whose scores of the candidates are STUDENT: documents are the axes of its space."""
    counts = torch.ones(mask.shape, dtype=torch.bool)
    scores = {"cross": Scores(torch.tensor(values), torch.tensor(mask))}
    targets = Targets(torch.zeros(4, 5), torch.eye(5, dtype=torch.float64), cosine=False, scores=scores)
    outputs = Outputs(torch.tensor(STUDENT), torch.tensor(STUDENT))
    return outputs, targets, Batch(torch.tensor(label), counts, torch.tensor(is_own))


def test_the_positive_of_margins_is_the_label_where_it_is_scored() -> None:
    label = np.zeros_like(MASK)
    label[0, 3] = label[1, 0] = label[3, 0] = True  # the teacher did not score the last one
    loss = ScoreMargin(kind="score_margin", teacher="cross", temperature=2.0, teacher_temperature=0.5)
    losses = loss.values(*scored(TEACHER, MASK, label, np.ones_like(MASK))).tolist()
    for row in range(4):
        columns = np.flatnonzero(MASK[row]).tolist()
        if not columns:
            assert losses[row] == 0
            continue
        positive = {0: 3, 1: 0}.get(row, max(columns, key=lambda column: TEACHER[row, column]))
        margins = [
            (STUDENT[row, positive] - STUDENT[row, j]) / 2 - (TEACHER[row, positive] - TEACHER[row, j]) / 0.5
            for j in columns
            if j != positive
        ]
        assert losses[row] == pytest.approx(sum(margin**2 for margin in margins) / len(margins), rel=1e-12)


@EVERY
def test_own_candidates_leaves_out_those_of_other_texts(kind: type[ScoreLoss]) -> None:
    is_own = np.random.default_rng(8).random(MASK.shape) < 0.7
    loss = loss_of(kind, 0.7, teacher="cross", own_candidates=True)
    label = np.zeros_like(MASK)
    losses = loss.values(*scored(TEACHER, np.ones_like(MASK), label, is_own))
    expected = loss.rows(torch.tensor(STUDENT), torch.tensor(TEACHER), torch.tensor(is_own))
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    assert not torch.equal(losses, loss.rows(torch.tensor(STUDENT), torch.tensor(TEACHER), torch.ones(4, 5) > 0))


@pytest.mark.parametrize(
    "changes",
    [
        {"teacher": "cross"}, {"teacher_temperature": 1.0}, {"kind": "score_squared"}, {"temperature": "cold"},
        {"temperature": 0}, {"temperature": math.nan}, {"temperature": math.inf},
    ],
)  # fmt: skip
def test_a_temperature_divides_and_an_automatic_one_is_of_distributions_of_the_index(changes: dict[str, Any]) -> None:
    described = {"kind": "score_softmax", "temperature": "auto"} | changes
    kind = ScoreSquared if described["kind"] == "score_squared" else ScoreSoftmax
    with pytest.raises(ValidationError, match="temperature"):
        kind.model_validate(described)
    assert ScoreSoftmax.model_validate({"kind": "score_softmax", "temperature": "auto"}).temperature == "auto"


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_at_the_telling_temperature_distributions_have_three_quarters_of_an_even_ones_entropy(
    cosine: bool, spread: float
) -> None:
    """The teacher's vectors lie close together, as a multilingual encoder's do, or far apart."""
    rng = np.random.default_rng(4)
    centre = rng.normal(size=16)
    texts, documents = ((centre + spread * rng.normal(size=(count, 16))) * 3 for count in (300, 200))
    units = units_of(texts, documents)
    lengths = [np.linalg.norm(side, axis=1, keepdims=True) if cosine else unit
               for side, unit in ((texts, units.queries), (documents, units.documents))]  # fmt: skip
    scores = (texts / lengths[0]) @ (documents / lengths[1]).T
    nearest = np.argsort(-scores, axis=1)[:, :8]
    rows = np.arange(0, 300, 2)
    temperature = telling_temperature(texts, documents, nearest, rows, units, cosine=cosine)
    near = np.take_along_axis(scores, nearest, axis=1)[rows]
    shares = np.exp((near - near.max(axis=1, keepdims=True)) / temperature)
    shares /= shares.sum(axis=1, keepdims=True)
    assert -(shares * np.log(shares)).sum(axis=1).mean() / math.log(8) == pytest.approx(0.75, abs=0.002)


def test_documents_that_are_all_alike_have_a_temperature_too() -> None:
    alike, nearest = np.ones((4, 3)), np.tile(np.arange(3), (4, 1))
    assert telling_temperature(alike, alike, nearest, np.arange(4), Units(), cosine=True) == 0.05


@pytest.mark.parametrize(
    ("teacher", "mask", "message"),
    [
        (torch.zeros(4, 4), torch.ones(4, 5, dtype=torch.bool), "differ in shape"),
        (torch.zeros(5), torch.ones(4, 5, dtype=torch.bool), "differ in shape"),
        (torch.zeros(4, 5), torch.ones(5, dtype=torch.bool), "mask"),
        (torch.zeros(4, 5), torch.ones(4, 5), "mask"),
    ],
)
def test_other_shapes_are_refused(teacher: torch.Tensor, mask: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss_of(ScoreBinary).rows(torch.zeros(4, 5), teacher, mask)


def test_losses_share_the_students_scores_of_the_same_documents_alone() -> None:
    draw = torch.Generator().manual_seed(3)
    queries, documents, other_documents = (torch.randn(4, 6, generator=draw) for _ in range(3))
    outputs = Outputs(queries=queries, raw=queries)
    targets = Targets(queries, documents, cosine=False)
    scores = outputs.scores(targets)
    assert outputs.scores(targets.fixed()) is scores
    for batch_targets in (targets, replace(targets, documents=other_documents)):
        torch.testing.assert_close(outputs.scores(batch_targets), queries @ batch_targets.documents.T)
    short = outputs.truncate(3).scores(targets.truncate(3))
    assert not torch.allclose(short, scores)
