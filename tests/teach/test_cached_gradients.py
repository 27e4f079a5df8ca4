"""A batch read in pieces has the loss and the gradients of the whole, in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from teach_fakes import EVERY_TERM, PARAMS, documents, queries, write_clicks, write_tower, write_world
from torch import Tensor

from slimtower.common.errors import UserError
from steps.encoders.towers import load_tower
from steps.teach.contrastive_training import ContrastiveLoss, Features, backward
from steps.teach.kinds.base import LossParams
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun
from steps.training.library_trainer import set_dropout

pytestmark = pytest.mark.medium

BATCH = 7


def tower_and_columns(folder: Path) -> tuple[SentenceTransformer, list[Features]]:
    tower = load_tower(write_tower(folder)).double()
    asked = [row["text"] for row in queries()[:BATCH]]
    read = [row["content"] for row in documents()]
    return tower, [dict(tower.preprocess(texts)) for texts in (asked, read[:BATCH], read[BATCH : 2 * BATCH])]


def whole(tower: SentenceTransformer, columns: list[Features], pieces: list[slice]) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients by one graph over all pieces, which are embedded in turn."""
    parts = [[tower(rows_of(column, piece))["sentence_embedding"] for column in columns] for piece in pieces]
    embeddings = [torch.cat(column) for column in zip(*parts, strict=True)]
    scores = embeddings[0] @ torch.cat(embeddings[1:]).T / 0.05
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(BATCH))
    loss.backward()
    return loss.detach(), gradients(tower)


def rows_of(column: Features, rows: slice) -> Features:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in column.items()}


def gradients(tower: SentenceTransformer) -> dict[str, Tensor]:
    found = {name: weight.grad.clone() for name, weight in tower.named_parameters() if weight.grad is not None}
    tower.zero_grad()
    return found


@pytest.mark.parametrize("micro_batch", [None, 1, 2, 3, 7, 50])
def test_pieces_have_the_gradients_of_the_whole(tmp_path: Path, micro_batch: int | None) -> None:
    tower, columns = tower_and_columns(tmp_path / "model")
    loss, expected = whole(tower, columns, [slice(0, BATCH)])
    objective = ContrastiveLoss(tower, 0.05, PARAMS.loss)
    found = backward(tower, lambda e: objective.compute_loss_from_embeddings(e, torch.empty(0)), columns, micro_batch)
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in gradients(tower).items():
        torch.testing.assert_close(gradient, expected.pop(name), rtol=1e-9, atol=1e-12)
    assert not expected


@pytest.mark.usefixtures("dropout")
def test_the_second_reading_drops_out_the_same_units(tmp_path: Path) -> None:
    tower, columns = tower_and_columns(tmp_path / "model")
    set_dropout(tower)
    tower.train()
    torch.manual_seed(5)
    loss, expected = whole(tower, columns, [slice(0, 3), slice(3, 6), slice(6, 7)])
    objective = ContrastiveLoss(tower, 0.05, PARAMS.loss)
    torch.manual_seed(5)
    found = backward(tower, lambda e: objective.compute_loss_from_embeddings(e, torch.empty(0)), columns, 3)
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in gradients(tower).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "loss", [PARAMS.loss, EVERY_TERM, PARAMS.loss.model_copy(update={"hard_negatives": "none"})], ids=repr
)
def test_a_smaller_micro_batch_trains_the_same_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: LossParams
) -> None:
    base = write_tower(tmp_path / "model")
    ingest, mine = write_world(tmp_path)
    write_clicks(ingest)
    params = PARAMS.model_copy(update={"base": str(base), "dev_queries": 0, "epochs": 1.0, "loss": loss})
    teach(ingest, mine, tmp_path / "whole", params, NullRun())
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "3")
    teach(ingest, mine, tmp_path / "pieces", params, NullRun())
    one, two = (load_file(tmp_path / name / "tower/model.safetensors") for name in ("whole", "pieces"))
    for name, tensor in one.items():
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam makes steps of
            np.testing.assert_allclose(two[name], tensor, rtol=0, atol=1e-3, err_msg=name)


def test_a_mistyped_micro_batch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_tower(tmp_path / "model")
    ingest, mine = write_world(tmp_path)
    params = PARAMS.model_copy(update={"base": str(base), "dev_queries": 0})
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "few")
    with pytest.raises(UserError, match=r"SLIMTOWER_MICRO_BATCH is 'few'; give a number"):
        teach(ingest, mine, tmp_path / "mistyped", params, NullRun())
