"""Losses on a cross encoder's embeddings of pairs: their formulas in float64, and students that learn them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stages import FAST, SCORE, distill_params, run_distill, run_score
from torch import Tensor, nn
from weights import weights_of

import steps.distill.checkpoints as checkpoints
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from steps.distill.losses.base import Batch, Outputs, Targets, Units
from steps.distill.losses.pair import JointEmbedding, PairLoss, PooledEmbedding
from steps.distill.score_tables import Pairs, PairTable
from steps.retrieval.rankers import dual_pooled, load_ranker
from steps.tracking.runs import NullRun

POOLED = PooledEmbedding(kind="pooled_embedding", teacher="cross")
JOINT = JointEmbedding(kind="joint_embedding", teacher="cross")
GENERATOR = torch.Generator().manual_seed(0)
QUERIES, DOCUMENTS, VALUES = (
    torch.randn(shape, dtype=torch.float64, generator=GENERATOR) for shape in ((3, 4), (5, 4), (3, 2, 6))
)
PLACE = torch.tensor([[0, 4], [2, 2], [3, 1]])
KNOWN = torch.tensor([[True, True], [True, False], [False, False]])
GIVEN = torch.tensor([[True, False], [True, True], [True, True]])


def head_of(loss: PairLoss) -> nn.Linear:
    torch.manual_seed(1)
    head = loss.head(4, 6)
    assert isinstance(head, nn.Linear)
    return head.double()


def values(loss: PairLoss, head: nn.Module, queries: Tensor, documents: Tensor | None = None) -> Tensor:
    outputs = Outputs(queries, queries, documents).measured_in(Units())
    provided = {loss.name: (Pairs(VALUES, GIVEN, PLACE, KNOWN), head)}
    targets = Targets(queries, DOCUMENTS, cosine=True, provided=provided)
    counts = torch.ones(3, 5, dtype=torch.bool)
    return loss.values(outputs, targets.measured_in(Units()), Batch(counts, counts, counts))


def by_hand(loss: PairLoss, head: nn.Linear, documents: Tensor) -> list[float]:
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    losses = []
    for row in range(3):
        query, distances = QUERIES[row].numpy(), []
        for column in range(2):
            inputs = query
            if loss is JOINT:
                document = documents[PLACE[row, column]].numpy()
                inputs = np.concatenate([query, document, query * document])
            lost = np.sqrt(((weight @ inputs + bias - VALUES[row, column].numpy()) ** 2).sum())
            if GIVEN[row, column] and (loss is POOLED or KNOWN[row, column]):
                distances.append(lost)
        losses.append(float(np.mean(distances)) if distances else 0.0)
    return losses


@pytest.mark.parametrize("loss", [POOLED, JOINT], ids=["pooled", "joint"])
def test_a_loss_is_the_mean_distance_to_the_embeddings_of_a_texts_pairs(loss: PairLoss) -> None:
    head = head_of(loss)
    np.testing.assert_allclose(values(loss, head, QUERIES).detach().numpy(), by_hand(loss, head, DOCUMENTS), rtol=1e-12)
    own_documents = DOCUMENTS.flip(0)
    if loss is JOINT:  # of a student that reads documents itself
        np.testing.assert_allclose(
            values(loss, head, QUERIES, own_documents).detach().numpy(), by_hand(loss, head, own_documents), rtol=1e-12
        )
    queries = QUERIES.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda vectors, _: values(loss, head, vectors, own_documents), (queries, head.weight)
    )


def test_a_table_says_where_documents_are_and_is_measured_in_its_mean_length() -> None:
    documents = np.array([[4, 7], [7, 9], [0, 4]])
    embedded = np.zeros((2, 2, 2), dtype=np.float32)
    embedded[:, :, 0] = [[2, 1], [6, 1]]  # mean length of the first pairs: 4
    table = PairTable(documents, embedded, positions=np.array([0, -1, 1]))  # the second text was not embedded
    pairs = table.of(np.array([0, 1, 2]), np.array([2, 4, 7]))
    assert pairs.is_embedded.tolist() == [[True, True], [False, False], [True, True]]
    assert pairs.is_candidate.tolist() == [[True, True], [True, False], [False, True]]
    assert pairs.positions[0].tolist() == [1, 2] and pairs.positions[2, 1] == 1
    assert pairs.values[[0, 2], :, 0].tolist() == [[0.5, 0.25], [1.5, 0.25]]
    assert not table.of(np.array([0]), np.zeros(0, dtype=np.int64)).is_candidate.any()


def student(*losses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return FAST | {"start": {"layers": [0, -1]}, "losses": list(losses)} | more


@pytest.fixture
def scored(embedded: Path, tiny_tower: Path, tmp_path: Path) -> Path:
    """A run in which the dual-pooled `pooled` and the [CLS]-pooled `joint`, of another dimension, have scored."""
    root = tmp_path / "root"
    shutil.copytree(embedded, root)
    rankers = {
        "pooled": dual_pooled(str(tiny_tower), "segments", 0.1, 48),
        "joint": load_ranker(tiny_tower, 48, seed=2),
    }
    for name, ranker in rankers.items():
        ranker.save_pretrained(str(root / "models/teach" / name / "tower"), create_model_card=False)
        write_json(root / "models/teach" / name / "report.json", {"kind": "cross_encoder"})
        run_score(root, name, SCORE.model_copy(update={"pairs": 2}))
    return root


class Killer(NullRun):
    """Raises when the loss is logged."""

    def metrics(self, values: Any, step: int | None = None) -> None:
        if "train_loss" in values:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_students_learn_them_killed_and_in_pieces(
    scored: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled, joint = ({"kind": f"{name}_embedding", "teacher": name} for name in ("pooled", "joint"))
    matched = student({"kind": "score_softmax", "teacher": "joint"}, joint, teacher_top_k=2, epochs=3.0)
    symmetric = {"towers": "symmetric", "max_document_length": 32}
    described = {
        "query": student(pooled),
        "matched": matched,
        "symmetric": student(joint, pooled, teacher_top_k=2, **symmetric),
        "wrong": student(pooled | {"teacher": "joint"}),
    }
    params = distill_params(student=described, students=["query", "matched", "wrong"])

    def weights(name: str) -> dict[str, Tensor]:
        return weights_of(run_distill(scored, name, params) / "query_encoder")

    expected = weights("matched")
    report = read_json(scored / "models/distill/matched/report.json")
    assert report["losses"] == ["score_softmax@joint", "joint_embedding@joint"]
    shutil.rmtree(scored / "models/distill/matched")
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run_distill(scored, "matched", params, Killer())
    assert list(own_cache.glob("distill/*/state.pt")) and not (scored / "models/distill/matched").exists()
    resumed = weights("matched")
    assert all(torch.equal(resumed[key], tensor) for key, tensor in expected.items())
    monkeypatch.undo()
    monkeypatch.setenv("SLIMTOWER_CACHE", str(own_cache))
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "5")
    for key, tensor in weights("matched").items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=2e-4)
    weights("query")
    weights("symmetric")
    with pytest.raises(UserError, match=r"pairs\.npy: .*joint.*pooled"):
        run_distill(scored, "wrong", params)
