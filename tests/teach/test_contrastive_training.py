"""The contrastive loss against its formulas in float64, whole or read in pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from teach_fakes import EVERY_TERM, PARAMS, documents, queries, write_clicks, write_tower, write_world
from torch import Tensor

from slimtower.common.errors import UserError
from slimtower.common.settings import validated
from steps.encoders.towers import load_tower
from steps.teach.contrastive_training import ContrastiveLoss, Features, InBatch, backward
from steps.teach.kinds.base import LossParams
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.run import run as teach
from steps.teach.training_triplets import TextTriplet
from steps.tracking.runs import NullRun
from steps.training.library_trainer import set_dropout

Vectors = list[np.ndarray]
Relevant = frozenset[tuple[int, int]]
"""Places of queries and of documents, positives before negatives, that do not count as each other's negatives."""
FORMS = [
    {},
    {"both_directions": True},
    {"dims": [4]},
    {"dims": [4, 8]},
    {"hard_negatives": "none"},
    {"hard_negatives": "none", "both_directions": True},
    {"hard_negatives": "margin", "margin": 0.2},
    {"hard_negatives": "both", "margin": 0.5, "margin_weight": 0.3},
    EVERY_TERM.model_dump(),
]
BATCH = [
    TextTriplet("Add records?", "a", "f", "judged", "d/a", "d/f", "d"),
    TextTriplet("tally", "b", "g", "judged", "d/b", "d/g", "d"),
    TextTriplet("add records", "c", "h", "judged", "d/c", "d/h", "d"),  # the first query once more
    TextTriplet("sketch", "d", "B!", "judged", "d/d", "d/copy", "d"),  # a copy of the second's positive
    TextTriplet("pick", "e", "i", "judged", "d/e", "d/i", "d"),
    TextTriplet("resize", "j", "k", "judged", "d/j", "d/k", "d"),
]
KNOWN = {"add records": {"d/a", "d/c", "d/g", "d/elsewhere"}, "pick": {"d/e", "d/j"}, "tally": {"d/b"}}
RELEVANT = frozenset({(0, 2), (2, 0), (0, 7), (2, 7), (4, 5), (1, 9)})
ROWS = 7


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return load_tower(write_tower(tmp_path_factory.mktemp("loss") / "model"))


def vectors(seed: int, count: int = 6) -> Vectors:
    """Queries, positives and negatives."""
    random = np.random.default_rng(seed)
    return [random.normal(size=(count, 16)) for _ in range(3)]


def value(
    tower: SentenceTransformer,
    temperature: float,
    params: LossParams,
    parts: Vectors,
    kind: Any,
    in_batch: InBatch | None = None,
) -> float:
    loss = ContrastiveLoss(tower, temperature, params, in_batch)
    numbers = torch.tensor(in_batch.numbers if in_batch else [])
    return loss.compute_loss_from_embeddings([torch.tensor(part, dtype=kind) for part in parts], numbers).item()


def cosine(query: np.ndarray, document: np.ndarray) -> float:
    return float(query @ document / np.linalg.norm(query) / np.linalg.norm(document))


def of_dim(
    queries: np.ndarray,
    positives: np.ndarray,
    negatives: np.ndarray,
    t: float,
    params: LossParams,
    relevant: Relevant = frozenset(),
) -> float:
    """ScalingNote's Eq. 5, 6, 7, 9 and 12 of one dimension, with loops over cosines, but for relevant pairs."""
    mined = params.hard_negatives in ("softmax", "both")
    documents = [*positives, *negatives] if mined else list(positives)
    forward = backward = hard = 0.0
    for row, (query, positive, negative) in enumerate(zip(queries, positives, negatives, strict=True)):
        likelihood = np.exp(cosine(query, positive) / t)
        near = [document for at, document in enumerate(documents) if (row, at) not in relevant]
        asking = [candidate for at, candidate in enumerate(queries) if (at, row) not in relevant]
        forward -= np.log(likelihood / sum(np.exp(cosine(query, document) / t) for document in near))
        backward -= np.log(likelihood / sum(np.exp(cosine(rival, positive) / t) for rival in asking))
        if (row, len(queries) + row) not in relevant:
            hard += max(0.0, params.margin - cosine(query, positive) + cosine(query, negative))
    total = (forward + backward) / 2 if params.both_directions else forward
    if params.hard_negatives in ("margin", "both"):
        total += params.margin_weight * hard
    return total / len(queries)


def reference(parts: Vectors, t: float, params: LossParams, relevant: Relevant = frozenset()) -> float:
    """Its sum over the whole vectors and the first dimensions (Eq. 7 and 10)."""
    dims = (16, *params.dims)
    return sum(of_dim(*(part[:, :dim] for part in parts), t, params, relevant) for dim in dims)  # type: ignore[misc]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_loss_is_its_formula(tower: SentenceTransformer, form: dict[str, Any], temperature: float) -> None:
    params, parts = PARAMS.loss.model_copy(update=form), vectors(0)
    expected = reference(parts, temperature, params)
    assert value(tower, temperature, params, parts, torch.float64) == pytest.approx(expected, rel=1e-12)
    assert value(tower, temperature, params, parts, torch.float32) == pytest.approx(expected, rel=1e-5)


def test_what_is_relevant_to_another_row_s_query_is_found() -> None:
    for rows in (range(6), [4, 5], [3, 1, 0], [2]):
        in_batch = InBatch(BATCH, KNOWN)
        relevant = in_batch.relevant(torch.tensor([in_batch.numbers[row] for row in rows]))
        columns = [*rows, *(6 + row for row in rows)]
        assert relevant.tolist() == [[(row, column) in RELEVANT for column in columns] for row in rows]


@pytest.mark.medium
@pytest.mark.parametrize("form", FORMS)
def test_what_is_known_to_be_relevant_is_no_negative(tower: SentenceTransformer, form: dict[str, Any]) -> None:
    params, parts, in_batch = PARAMS.loss.model_copy(update=form), vectors(6), InBatch(BATCH, KNOWN)
    expected = reference(parts, 0.3, params, RELEVANT)
    assert value(tower, 0.3, params, parts, torch.float64, in_batch) == pytest.approx(expected, rel=1e-12)
    assert expected < reference(parts, 0.3, params)
    loss = ContrastiveLoss(tower, 0.3, params, in_batch)
    leaves = [torch.tensor(part, requires_grad=True) for part in parts]
    numbers = torch.tensor(in_batch.numbers)
    assert torch.autograd.gradcheck(
        lambda *embeddings: loss.compute_loss_from_embeddings(list(embeddings), numbers), leaves
    )


@pytest.mark.parametrize("form", FORMS)
def test_nothing_pushes_a_row_s_own_negative_away_that_is_known_to_be_relevant(
    tower: SentenceTransformer, form: dict[str, Any]
) -> None:
    params, parts = PARAMS.loss.model_copy(update=form), vectors(6)
    in_batch = InBatch(BATCH, KNOWN | {"add records": {*KNOWN["add records"], "d/f"}, "resize": {"d/j", "d/k"}})
    relevant = RELEVANT | {(0, 6), (2, 6), (5, 11)}
    expected = reference(parts, 0.3, params, relevant)
    assert value(tower, 0.3, params, parts, torch.float64, in_batch) == pytest.approx(expected, rel=1e-12)
    leaves = [torch.tensor(part, requires_grad=True) for part in parts]
    loss = ContrastiveLoss(tower, 0.3, params, in_batch)
    loss.compute_loss_from_embeddings(leaves, torch.tensor(in_batch.numbers)).backward()
    if params.hard_negatives == "margin":  # in softmaxes it is still a negative of other rows
        pulls = leaves[2].grad
        assert pulls is not None and not pulls[5].any() and pulls[4].any()


def test_similarities_stay_fp32_under_bf16_autocast(tower: SentenceTransformer) -> None:
    parts = vectors(1, count=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_value = value(tower, 0.05, EVERY_TERM, parts, torch.float32)
    assert loss_value == pytest.approx(reference(parts, 0.05, EVERY_TERM), rel=1e-5)


def test_a_tower_of_inner_products_compares_whole_vectors_by_them_and_first_dimensions_as_the_index_does(
    tmp_path: Path,
) -> None:
    tower = load_tower(write_tower(tmp_path / "model"))
    tower.similarity_fn_name = "dot"
    form = {"dims": [4], "hard_negatives": "margin", "margin": 9.0}
    parts = vectors(5)
    full_loss = value(tower, 1.0, PARAMS.loss.model_copy(update={"hard_negatives": "none"}), parts, torch.float64)
    short = of_dim(*(part[:, :4] for part in parts), 1.0, PARAMS.loss.model_copy(update=form))  # type: ignore[misc]
    by_product = np.maximum(0.0, [9.0 - q @ near + q @ far for q, near, far in zip(*parts, strict=True)])
    loss_value = value(tower, 1.0, PARAMS.loss.model_copy(update=form), parts, torch.float64)
    assert loss_value == pytest.approx(full_loss + by_product.mean() + short, rel=1e-12)


def test_a_dimension_is_named_once() -> None:
    raw = PARAMS.model_dump()
    with pytest.raises(UserError, match=r"loss\.dims is \[4, 4\]"):
        validated(DualEncoder, raw | {"loss": raw["loss"] | {"dims": [4, 4]}}, "params.yaml")


def tower_and_columns(folder: Path) -> tuple[SentenceTransformer, list[Features]]:
    tower = load_tower(write_tower(folder)).double()
    query_texts = [row["text"] for row in queries()[:ROWS]]
    contents = [row["content"] for row in documents()]
    return tower, [dict(tower.preprocess(texts)) for texts in (query_texts, contents[:ROWS], contents[ROWS : 2 * ROWS])]


def whole_batch(
    tower: SentenceTransformer, columns: list[Features], pieces: list[slice]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients by one graph over all pieces, which are embedded in turn."""
    parts = [[tower(rows_of(column, piece))["sentence_embedding"] for column in columns] for piece in pieces]
    embeddings = [torch.cat(column) for column in zip(*parts, strict=True)]
    scores = embeddings[0] @ torch.cat(embeddings[1:]).T / 0.05
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(ROWS))
    loss.backward()
    return loss.detach(), gradients(tower)


def rows_of(column: Features, rows: slice) -> Features:
    return {name: value[rows] if isinstance(value, Tensor) else value for name, value in column.items()}


def gradients(tower: SentenceTransformer) -> dict[str, Tensor]:
    by_name = {name: weight.grad.clone() for name, weight in tower.named_parameters() if weight.grad is not None}
    tower.zero_grad()
    return by_name


@pytest.mark.medium
@pytest.mark.parametrize("micro_batch", [None, 1, 2, 3, 7, 50])
def test_pieces_have_the_gradients_of_the_whole(tmp_path: Path, micro_batch: int | None) -> None:
    tower, columns = tower_and_columns(tmp_path / "model")
    loss, expected = whole_batch(tower, columns, [slice(0, ROWS)])
    objective = ContrastiveLoss(tower, 0.05, PARAMS.loss)
    loss_value = backward(
        tower, lambda e: objective.compute_loss_from_embeddings(e, torch.empty(0)), columns, micro_batch
    )
    assert loss_value.item() == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in gradients(tower).items():
        torch.testing.assert_close(gradient, expected.pop(name), rtol=1e-9, atol=1e-12)
    assert not expected


@pytest.mark.medium
@pytest.mark.usefixtures("dropout")
def test_the_second_reading_drops_out_the_same_units(tmp_path: Path) -> None:
    tower, columns = tower_and_columns(tmp_path / "model")
    set_dropout(tower)
    tower.train()
    torch.manual_seed(5)
    loss, expected = whole_batch(tower, columns, [slice(0, 3), slice(3, 6), slice(6, 7)])
    objective = ContrastiveLoss(tower, 0.05, PARAMS.loss)
    torch.manual_seed(5)
    loss_value = backward(tower, lambda e: objective.compute_loss_from_embeddings(e, torch.empty(0)), columns, 3)
    assert loss_value.item() == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in gradients(tower).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.medium
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
    weights, two = (load_file(tmp_path / name / "tower/model.safetensors") for name in ("whole", "pieces"))
    for name, tensor in weights.items():
        if not name.endswith("key.bias"):  # its gradient is zero but for rounding, which Adam makes steps of
            np.testing.assert_allclose(two[name], tensor, rtol=0, atol=1e-3, err_msg=name)


@pytest.mark.medium
def test_a_mistyped_micro_batch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_tower(tmp_path / "model")
    ingest, mine = write_world(tmp_path)
    params = PARAMS.model_copy(update={"base": str(base), "dev_queries": 0})
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "few")
    with pytest.raises(UserError, match="SLIMTOWER_MICRO_BATCH is 'few'"):
        teach(ingest, mine, tmp_path / "mistyped", params, NullRun())


@pytest.mark.parametrize("hard_negatives", ["none", "softmax"])
@pytest.mark.parametrize("knob", ["margin", "margin_weight"])
def test_a_margin_that_would_do_nothing_is_refused(hard_negatives: Any, knob: str) -> None:
    with pytest.raises(ValueError, match="are of hard_negatives: margin or both"):
        LossParams.model_validate({"hard_negatives": hard_negatives, knob: 0.2})
