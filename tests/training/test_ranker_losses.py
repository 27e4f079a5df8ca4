"""The losses and their gradients against their formulas in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_fakes import PARAMS, write_encoder
from torch import Tensor

from steps.retrieval.rankers import load_ranker, pair_scores
from steps.training.ranker import ListChoice, RankedList, objective, rows

pytestmark = pytest.mark.medium

LISTS = [
    RankedList("how to add records", "sum rows", ("sort all rows", "merge fields at once", "plot rows")),
    RankedList("how to order records", "sort rows", ("sum rows",)),
]
SIZES = [1 + len(each.negatives) for each in LISTS]


def bce(logits: Tensor, weight: float) -> Tensor:
    """Mean of `-(w y log s(x) + (1 - y) log(1 - s(x)))` over pairs, of which the first of each list is relevant."""
    labels = torch.cat([torch.eye(size, dtype=torch.float64)[0] for size in SIZES])
    chance = 1 / (1 + torch.exp(-logits))
    return -(weight * labels * torch.log(chance) + (1 - labels) * torch.log(1 - chance)).mean()


def softmax(logits: Tensor) -> Tensor:
    """EmbedDistill, Eq. 8: mean of `log sum_j exp(s_j) - s_0` over lists whose first document alone is relevant."""
    return torch.stack([torch.log(torch.exp(own).sum()) - own[0] for own in logits.split(SIZES)]).mean()


def discount(rank: int) -> float:
    return float(torch.log2(torch.tensor(1.0 + rank, dtype=torch.float64)))


def lambda_loss(logits: Tensor) -> Tensor:
    """NDCG-Loss2++ (Wang et al. 2018, Eq. 16 and 17), mu = 10, of lists whose first document alone is relevant.

    Mean of `(10 * delta_ij + rho_ij) * |G_i - G_j| * log2(1 + exp(s_j - s_i))` over pairs of i relevant and j not,
    rho_ij = |1/D_i - 1/D_j|, delta_ij = |1/D_|i-j| - 1/D_(|i-j|+1)|, D_r = log2(1 + r).
    """
    terms = []
    for scores in logits.split(SIZES):
        order = torch.argsort(-scores).tolist()
        first = order.index(0) + 1
        for other in range(1, len(scores)):
            rank = order.index(other) + 1
            gap = abs(first - rank)
            delta = abs(1 / discount(gap) - 1 / discount(gap + 1))
            rho = abs(1 / discount(first) - 1 / discount(rank))
            terms.append((10 * delta + rho) * torch.log2(1 + torch.exp(scores[other] - scores[0])))
    return torch.stack(terms).mean()


def of_pairs(logits: Tensor) -> Tensor:
    """Scores list by list in the order of the rows of `bce`: all positives first."""
    parts = logits.split(SIZES)
    return torch.cat([torch.stack([own[0] for own in parts]), *[own[1:] for own in parts]])


FORMULAS: dict[str, tuple[str, float, Callable[[Tensor], Tensor]]] = {
    "bce": ("bce", 1.0, lambda logits: bce(logits, 1.0)),
    "weighted bce": ("bce", 2.5, lambda logits: bce(logits, 2.5)),
    "softmax": ("softmax", 1.0, softmax),
    "lambda": ("lambda", 1.0, lambda_loss),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_loss_and_its_gradient_are_those_of_its_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, weight, formula = FORMULAS[name]
    ranker = load_ranker(write_encoder(tmp_path / "model"), 32, seed=1)
    data = rows(LISTS, kind)
    if kind == "bce":
        texts, labels = [data["query"][:], data["document"][:]], torch.tensor(data["label"][:])
        assert labels.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    else:
        texts, labels = [data["query"][:], data["documents"][:]], [torch.tensor(each) for each in data["labels"]]
    loss: Any = objective(ranker, PARAMS.model_copy(update={"loss": kind}), weight)
    pairs = [(each.query, text) for each in LISTS for text in (each.positive, *each.negatives)]
    scores = torch.from_numpy(pair_scores(ranker, pairs, precision="fp32", batch_size=2)).double()
    assert loss(texts, labels).item() == pytest.approx(formula(scores).item(), rel=1e-4)

    generator = torch.Generator().manual_seed(3)
    given = torch.randn(sum(SIZES), dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(formula, given)
    found = given.detach().clone().requires_grad_()
    logits = of_pairs(found) if kind == "bce" else found
    monkeypatch.setattr(ranker, "forward", lambda *_: {"scores": logits})
    for value, scores in ((loss(texts, labels), found), (formula(given), given)):
        value.backward()
        assert value.item() == pytest.approx(formula(scores).item(), rel=1e-5)
    torch.testing.assert_close(found.grad, given.grad, rtol=1e-5, atol=1e-7)


def test_both_classes_weigh_the_same() -> None:
    choice = ListChoice(LISTS, {}, {})
    assert choice.negatives_per_positive == 2.0  # four negatives, two positives
