"""The losses against their formulas in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rank_fakes import PARAMS, write_encoder

from steps.retrieval.rankers import load_ranker, pair_scores
from steps.training.ranked_lists import ListChoice, RankedList
from steps.training.ranker import objective, positive_weight, rows

pytestmark = pytest.mark.medium

LISTS = [
    RankedList("how to add records", "sum rows", ("sort all rows", "merge fields at once", "plot rows")),
    RankedList("how to order records", "sort rows", ("sum rows",)),
]


def test_binary_cross_entropy_weighs_positives(tmp_path: Path) -> None:
    ranker = load_ranker(write_encoder(tmp_path / "model"), 32, seed=1)
    data = rows(LISTS, "bce")
    assert data["label"][:] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    pairs = list(zip(data["query"], data["document"], strict=True))
    logits = pair_scores(ranker, pairs, precision="fp32", batch_size=2).astype(np.float64)
    labels = np.array(data["label"][:])
    for weight in (1.0, 2.5):
        chance = 1 / (1 + np.exp(-logits))
        expected = -(weight * labels * np.log(chance) + (1 - labels) * np.log(1 - chance)).mean()
        loss = objective(ranker, PARAMS, weight)
        found = loss([data["query"][:], data["document"][:]], torch.tensor(data["label"][:]))
        assert found.item() == pytest.approx(expected, rel=1e-5)


def test_auto_weighs_both_classes_the_same() -> None:
    choice = ListChoice(LISTS, {}, {})
    assert positive_weight(choice, PARAMS) == 2.0  # four negatives, two positives
    assert positive_weight(choice, PARAMS.model_copy(update={"positive_weight": 7.0})) == 7.0


def lambda_reference(logits: list[np.ndarray]) -> float:
    """NDCG-Loss2++ (Wang et al. 2018, Eq. 16 and 17), mu = 10, of lists whose first document alone is relevant.

    Mean of `(10 * delta_ij + rho_ij) * |G_i - G_j| * log2(1 + exp(s_j - s_i))` over pairs of i relevant and j not,
    rho_ij = |1/D_i - 1/D_j|, delta_ij = |1/D_|i-j| - 1/D_(|i-j|+1)|, D_r = log2(1 + r).
    """

    def discount(rank: int) -> float:
        return float(np.log2(1 + rank))

    terms = []
    for scores in logits:
        order = np.argsort(-scores).tolist()
        first = order.index(0) + 1
        for other in range(1, len(scores)):
            rank = order.index(other) + 1
            gap = abs(first - rank)
            delta = abs(1 / discount(gap) - 1 / discount(gap + 1))
            rho = abs(1 / discount(first) - 1 / discount(rank))
            terms.append((10 * delta + rho) * np.log2(1 + np.exp(scores[other] - scores[0])))
    return float(np.mean(terms))


def test_lambda_loss_is_ndcg_loss_2_plus_plus(tmp_path: Path) -> None:
    ranker = load_ranker(write_encoder(tmp_path / "model"), 32, seed=1)
    data = rows(LISTS, "lambda")
    logits = [
        pair_scores(ranker, [(query, document) for document in documents], precision="fp32", batch_size=8)
        for query, documents in zip(data["query"], data["documents"], strict=True)
    ]
    loss = objective(ranker, PARAMS.model_copy(update={"loss": "lambda"}), 1.0)
    found = loss([data["query"][:], data["documents"][:]], [torch.tensor(each) for each in data["labels"]])
    assert found.item() == pytest.approx(lambda_reference([each.astype(np.float64) for each in logits]), rel=1e-4)
