"""InfoNCE against its formula in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from teach_fakes import write_tower

from steps.core.towers import load_tower
from steps.teach.contrastive_training import info_nce


def reference(queries: np.ndarray, positives: np.ndarray, negatives: np.ndarray, temperature: float) -> float:
    """The mean of -log(exp(s_ii/t) / sum_j exp(s_ij/t)), written out with loops over cosines."""
    documents = np.concatenate([positives, negatives])
    total = 0.0
    for row, query in enumerate(queries):
        scores = [
            float(query @ document / np.linalg.norm(query) / np.linalg.norm(document)) / temperature
            for document in documents
        ]
        total -= scores[row] - np.log(sum(np.exp(score) for score in scores))
    return total / len(queries)


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_loss_is_info_nce_over_positives_and_mined_negatives(tmp_path: Path, temperature: float) -> None:
    tower = load_tower(write_tower(tmp_path / "model"))
    random = np.random.default_rng(0)
    queries, positives, negatives = (random.normal(size=(6, 16)) for _ in range(3))
    loss = info_nce(tower, temperature).compute_loss_from_embeddings(
        [torch.tensor(part, dtype=torch.float32) for part in (queries, positives, negatives)], torch.empty(0)
    )
    assert loss.item() == pytest.approx(reference(queries, positives, negatives, temperature), rel=1e-5)


def test_similarities_stay_fp32_under_bf16_autocast(tmp_path: Path) -> None:
    tower = load_tower(write_tower(tmp_path / "model"))
    random = np.random.default_rng(1)
    parts = [random.normal(size=(4, 16)) for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = info_nce(tower, 0.05).compute_loss_from_embeddings(
            [torch.tensor(part, dtype=torch.float32) for part in parts], torch.empty(0)
        )
    assert loss.item() == pytest.approx(reference(*parts, 0.05), rel=1e-5)


def test_loss_falls_as_the_positive_nears_and_rises_as_the_negative_does(tmp_path: Path) -> None:
    tower = load_tower(write_tower(tmp_path / "model"))
    random = np.random.default_rng(2)
    queries, positives, negatives = (torch.tensor(random.normal(size=(4, 16)), requires_grad=True) for _ in range(3))
    info_nce(tower, 0.5).compute_loss_from_embeddings([queries, positives, negatives], torch.empty(0)).backward()
    before = info_nce(tower, 0.5).compute_loss_from_embeddings([queries, positives, negatives], torch.empty(0))
    assert positives.grad is not None
    assert negatives.grad is not None
    moved = info_nce(tower, 0.5).compute_loss_from_embeddings(
        [queries, positives + 0.1 * queries.detach(), negatives - 0.1 * queries.detach()], torch.empty(0)
    )
    assert moved < before
