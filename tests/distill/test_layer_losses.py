"""LEAD's losses against its equations written out in float64, and their gradients."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from steps.distill.layer_pairs import LayerPairs
from steps.distill.layer_teachers import LayerTargets, LayerTeacher
from steps.distill.losses.base import Batch, Outputs, Scores, Targets
from steps.distill.losses.layer import LayerDistillation, PairedLayers
from steps.distill.losses.mutual import MutualKL, TeacherLabelSoftmax

RNG = np.random.default_rng(3)
N, K, M, WIDTH = 4, 3, 6, 5
STATES, DOCUMENTS, TEACHER = RNG.normal(size=(N, K, WIDTH)), RNG.normal(size=(M, K, WIDTH)), RNG.normal(size=(N, K, M))
SCORES, OTHERS = RNG.normal(size=(N, M)), RNG.normal(size=(N, M))
LABEL = [2, None, 0, 5]  # of each text
MASKED = {0: [4], 3: [0, 1]}  # other positives of a text: no candidates of its label loss
UNKNOWN = {2: [3, 4]}  # documents that the teacher has not scored for a text


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch() -> Batch:
    label, counts = np.zeros((N, M), dtype=bool), np.ones((N, M), dtype=bool)
    for row, label_column in enumerate(LABEL):
        if label_column is not None:
            label[row, label_column] = True
        counts[row, MASKED.get(row, [])] = False
    return Batch(torch.from_numpy(label), torch.from_numpy(counts), torch.from_numpy(counts))


def scored_mask() -> torch.Tensor:
    mask = torch.ones(N, M, dtype=torch.bool)
    for row, columns in UNKNOWN.items():
        mask[row, columns] = False
    return mask


NOTHING = Outputs(torch.zeros(N, 2), torch.zeros(N, 2))  # what the loss does not read


@dataclass
class Fixed(LayerTeacher):
    """A teacher whose layers give these scores."""

    fixed_targets: LayerTargets

    def layer_targets(self, *_: Any) -> LayerTargets:
        return self.fixed_targets


def targets(
    states: torch.Tensor,
    scores: torch.Tensor,
    documents: torch.Tensor | None,
    docs: torch.Tensor | None = None,
    losses: list[float] | None = None,
    mask: torch.Tensor | None = None,
) -> Targets:
    """What the provider gives of a student's states, and of its `own` or the teacher's of `documents`."""
    teacher = Fixed(LayerTargets(scores, scored_mask() if mask is None else mask, documents))
    layers = PairedLayers(loss(), None, teacher, LayerPairs(K, "last", range(K), K, 1))
    tensors = {"queries.states": states} | ({} if docs is None else {"documents.states": docs})
    layer_scores = layers.values(tensors, np.arange(N), np.arange(scores.shape[2]))
    layer_scores = replace(layer_scores, losses=None if losses is None else tensor(np.array(losses)))
    return Targets(torch.zeros(N, 2), torch.zeros(M, 2), cosine=True, provided={"layer_distillation": layer_scores})


def loss(**knobs: Any) -> LayerDistillation:
    return LayerDistillation(kind="layer_distillation", layers=K, **knobs)


def shares(scores: dict[int, float], temperature: float = 1.0) -> dict[int, float]:
    """Eq. 4 and 5."""
    raised = {d: math.exp(score / temperature) for d, score in scores.items()}
    return {d: value / sum(raised.values()) for d, value in raised.items()}


def kl(p: dict[int, float], q: dict[int, float]) -> float:
    return sum(p[d] * math.log(p[d] / q[d]) for d in p)


def own_loss(row: int, layer: int) -> float:
    """KL(y, t_i) of Eq. 7, y one-hot; 0 where there is no label."""
    if LABEL[row] is None:
        return 0.0
    scored_documents = [d for d in range(M) if d not in MASKED.get(row, []) + UNKNOWN.get(row, [])]
    return -math.log(shares({d: float(TEACHER[row, layer, d]) for d in scored_documents})[LABEL[row] or 0])


def by_hand(row: int, temperature: float, weights: list[float], teachers: float | None = None) -> float:
    """Eq. 8 of one text; the teacher's scores are divided by `teachers`."""
    total = 0.0
    for layer in range(K):
        scored_documents = [d for d in range(M) if d not in UNKNOWN.get(row, [])]
        ours = {d: sum(float(a) * float(b) for a, b in zip(STATES[row, layer], DOCUMENTS[d, layer], strict=True))
                for d in scored_documents}  # fmt: skip
        theirs = {d: float(TEACHER[row, layer, d]) for d in scored_documents}
        total += weights[layer] * kl(shares(theirs, teachers or temperature), shares(ours, temperature))
    return total


@pytest.mark.parametrize(("temperature", "teachers", "own_documents"), [(1.0, None, False), (0.3, 4.0, True)])
@pytest.mark.parametrize("weigh", ["text", "batch", "equal"])
def test_layer_distillation_is_equations_6_to_8(
    weigh: str, temperature: float, teachers: float | None, own_documents: bool
) -> None:
    knobs: dict[str, Any] = {"reweighting": False} if weigh == "equal" else {"weights_by": weigh}
    mean = [0.3, 2.0, 1.1]
    documents = tensor(DOCUMENTS)
    sides = (documents / 2, documents) if own_documents else (documents, None)
    layer_targets = targets(tensor(STATES), tensor(TEACHER), *sides, losses=mean)
    made_by = loss(temperature=temperature, teacher_temperature=teachers, **knobs)
    values = made_by.values(NOTHING, layer_targets, batch()).tolist()
    for row in range(N):
        layer_losses = [own_loss(row, layer) for layer in range(K)] if weigh == "text" else mean
        raised = [1.0] * K if weigh == "equal" else [math.exp(-layer_loss / 10.0) for layer_loss in layer_losses]
        weights = [weight / sum(raised) for weight in raised]
        assert values[row] == pytest.approx(by_hand(row, temperature, weights, teachers), rel=1e-9)


def test_its_gradients_are_those_of_its_value_and_weights_have_none() -> None:
    made_by = loss(temperature=0.7)
    states, documents, teacher = (tensor(array).requires_grad_() for array in (STATES, DOCUMENTS, TEACHER))
    weighed: Any = lambda s, d: made_by.values(NOTHING, targets(s, teacher.detach(), None, d), batch())  # noqa: E731
    assert torch.autograd.gradcheck(weighed, (states, documents))
    plain = loss(temperature=0.7, reweighting=False)
    assert torch.autograd.gradcheck(
        lambda t: plain.values(NOTHING, targets(states.detach(), t, None, documents.detach()), batch()), (teacher,)
    )
    layer_targets = targets(states, teacher, None, documents)
    made_by.values(NOTHING, layer_targets, batch())[1].backward(retain_graph=True)  # a text without label
    slopes = teacher.grad
    teacher.grad = None
    plain.values(NOTHING, layer_targets, batch())[1].backward()
    torch.testing.assert_close(teacher.grad, slopes)  # equal weights, and the same gradient
    assert not made_by._weights(layer_targets.provided["layer_distillation"], batch()).requires_grad


def test_equal_layers_cost_nothing_and_no_candidates_neither() -> None:
    scores = torch.einsum("nkd,mkd->nkm", tensor(STATES), tensor(DOCUMENTS))
    layer_targets = targets(tensor(STATES), scores, tensor(DOCUMENTS))
    assert loss().values(NOTHING, layer_targets, batch()).abs().max() < 1e-12
    nothing = torch.zeros(N, 0, dtype=torch.bool)
    states = tensor(STATES).requires_grad_()
    for documents in (tensor(DOCUMENTS)[:0], None):
        none = targets(states, tensor(TEACHER)[:, :, :0], documents, mask=nothing)
        values = loss().values(NOTHING, none, Batch(nothing, nothing, nothing))
        assert values.tolist() == [0.0] * N
        [slope] = torch.autograd.grad(values.sum(), states)
        assert not slope.any()


def test_it_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="no states of documents"):
        targets(tensor(STATES), tensor(TEACHER), None)
    with pytest.raises(ValueError, match="over the whole batch"):
        layer_targets = targets(tensor(STATES), tensor(TEACHER), tensor(DOCUMENTS))
        loss(weights_by="batch").values(NOTHING, layer_targets, batch())


def scored(student: torch.Tensor, teacher: torch.Tensor) -> tuple[Outputs, Targets]:
    """Embeddings whose inner products are these scores."""
    outputs = Outputs(student, student)
    scores = {"": Scores(teacher, scored_mask())}
    return outputs, Targets(teacher, torch.eye(M, dtype=torch.float64), cosine=False, scores=scores)


@pytest.mark.parametrize("teacher_temperature", [None, 1.5])
@pytest.mark.parametrize("reverse", [True, False])
def test_mutual_kl_is_equation_9(reverse: bool, teacher_temperature: float | None) -> None:
    made_by = MutualKL(kind="mutual_kl", temperature=0.4, teacher_temperature=teacher_temperature, reverse=reverse)
    losses = made_by.values(*scored(tensor(SCORES), tensor(OTHERS)), batch()).tolist()
    for row in range(N):
        scored_documents = [d for d in range(M) if d not in UNKNOWN.get(row, [])]
        sides_at = ((SCORES, 0.4), (OTHERS, teacher_temperature or 0.4))
        s, t = (shares({d: float(side[row, d]) for d in scored_documents}, at) for side, at in sides_at)
        assert losses[row] == pytest.approx(kl(t, s) + (kl(s, t) if reverse else 0.0), rel=1e-9)
    sides = (tensor(SCORES).requires_grad_(), tensor(OTHERS).requires_grad_())
    assert torch.autograd.gradcheck(lambda s, t: made_by.values(*scored(s, t), batch()), sides)


def test_a_teachers_label_loss_is_equation_10() -> None:
    made_by = TeacherLabelSoftmax(kind="teacher_label_softmax", temperature=0.6)
    losses = made_by.values(*scored(tensor(SCORES), tensor(OTHERS)), batch()).tolist()
    for row, label_column in enumerate(LABEL):
        scored_documents = [d for d in range(M) if d not in MASKED.get(row, []) + UNKNOWN.get(row, [])]
        t = shares({d: float(OTHERS[row, d]) for d in scored_documents}, 0.6)
        assert losses[row] == pytest.approx(0.0 if label_column is None else -math.log(t[label_column]), rel=1e-9)
    teacher_scores = tensor(OTHERS).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: made_by.values(*scored(tensor(SCORES), t), batch()), (teacher_scores,))
