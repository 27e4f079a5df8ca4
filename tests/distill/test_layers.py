"""Layers of teacher and student: which are paired when, and what is stored of the teacher's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stages import distill_params, run_distill
from transformers import BertModel

import steps.distill.layer_pairs as layer_pairs
import steps.distill.layer_store as layer_store
from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.distill.layer_pairs import LayerPairs, Pairs, Selection, candidate_layers, maps_between
from steps.distill.layer_pooling import random_projection
from steps.distill.layer_store import LayerReader
from steps.distill.layer_teachers import StoredLayers
from steps.distill.students import TransformerStudent
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium

TEXTS = ["how to sum the axis", "window", "a mean of a matrix over the last axis of a file"]


def unasked(layers: Sequence[int]) -> torch.Tensor:
    raise AssertionError("losses of layers are read where they weigh alone")


def pairs_of(count: int, selection: Selection = "random", seed: int = 7) -> LayerPairs:
    return LayerPairs(count, selection, candidate_layers(count, selection, 12, 6), 6, seed)


def test_layers_are_drawn_anew_every_ten_steps_by_the_seed_and_stay_in_order() -> None:
    selector, again, reseeded = pairs_of(5), pairs_of(5), pairs_of(5, seed=8)
    pairs = [selector.at(step, unasked) for step in range(1, 401)]
    assert pairs == [again.at(step, unasked) for step in range(1, 401)]
    assert pairs != [reseeded.at(step, unasked) for step in range(1, 401)]
    draws = [pairs[start : start + 10] for start in range(0, 400, 10)]
    assert all(len(set(draw)) == 1 for draw in draws) and len({draw[0] for draw in draws}) > 30
    for pair in pairs:
        for layers, depth in ((pair.teacher, 12), (pair.student, 6)):
            assert len(set(layers)) == 5 and list(layers) == sorted(layers)
            assert set(layers) <= set(range(depth))  # 0 is the first layer: the embedding layer has no number
    assert {layer for pair in pairs for layer in pair.teacher} == set(range(12))
    students = {draw[0].teacher: draw[0].student for draw in draws}
    assert len(set(students.values())) == 6  # all there are; not one for each choice of the teacher's
    assert pairs_of(5).at(233, unasked) == pairs[232]  # begun anew in the middle


def test_fixed_selections_are_the_published_ones() -> None:
    last, skip = pairs_of(5, "last"), pairs_of(5, "skip")
    for step in (1, 50, 1000):
        assert last.at(step, unasked) == Pairs((7, 8, 9, 10, 11), (1, 2, 3, 4, 5))
        assert skip.at(step, unasked) == Pairs((0, 2, 4, 6, 8), (1, 2, 3, 4, 5))


def test_weighted_layers_are_drawn_by_equation_7_and_outlive_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_pairs, "REDRAW_STEPS", 1)
    monkeypatch.setattr(layer_pairs, "LAYER_TEMPERATURE", 2.0)
    losses = torch.tensor([8.0, 1.0, 3.0])
    one_pair = LayerPairs(1, "weighted", [0, 1, 2], 3, 7)
    teacher_layers = [one_pair.at(step, lambda layers: losses[list(layers)]).teacher[0] for step in range(1, 2001)]
    raised = np.exp(-losses.double().numpy() / 2)
    np.testing.assert_allclose(np.bincount(teacher_layers, minlength=3) / 2000, raised / raised.sum(), atol=0.03)
    monkeypatch.undo()
    long = LayerPairs(1, "weighted", [0, 1, 2], 3, 7)
    before = long.at(3, lambda layers: losses)
    resumed = LayerPairs(1, "weighted", [0, 1, 2], 3, 7)
    resumed.load_state_dict(long.state_dict())
    assert resumed.at(4, unasked) == before


def test_weighted_layers_are_drawn_although_all_but_one_have_no_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(-800) is 0 in float64, and as many layers as are paired must be drawn."""
    monkeypatch.setattr(layer_pairs, "REDRAW_STEPS", 1)
    two_pairs = LayerPairs(2, "weighted", [0, 1, 2], 3, 7)
    losses = torch.tensor([0.0, 8000.0, 9000.0])
    teacher_layers = {two_pairs.at(step, lambda layers: losses[list(layers)]).teacher for step in range(1, 50)}
    assert teacher_layers == {(0, 1), (0, 2)}


def test_too_few_layers_are_named() -> None:
    with pytest.raises(UserError, match="student has 6"):
        candidate_layers(7, "random", 10, 6)
    with pytest.raises(UserError, match="teacher's 10 are 5"):
        candidate_layers(6, "skip", 10, 6)


def states_by_hand(folder: Path, text: str, prompt: str = "") -> np.ndarray:
    """Mean state of each layer of the network, float64 `(layers, width)`, by transformers alone."""
    tower: Any = load_tower(folder)
    tokens = tower.tokenizer(prompt + text, return_tensors="pt")
    with torch.no_grad():
        states = tower[0].auto_model(**tokens, output_hidden_states=True).hidden_states
    return np.stack([state[0].double().numpy().mean(axis=0) for state in states[1:]])


def read_layers(tower: Path, layers: Sequence[int], state_dim: int = 0) -> Any:
    reader = LayerReader(tower, fingerprint(tower).id, layers, state_dim, "fp32")
    texts, documents = np.array([1, 4, 5]), np.array([0, 3, 9])
    tables = reader.table("query", TEXTS, texts), reader.table("document", TEXTS[::-1], documents)
    return StoredLayers(layers, *tables, reader.key)


def test_stored_layers_score_as_the_products_of_the_networks_own_states(
    tiny_tower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = read_layers(tiny_tower, [0, 2, 3])
    states = {text: states_by_hand(tiny_tower, text) for text in TEXTS}
    layer_targets = stored.layer_targets({}, np.array([4, 1]), np.array([0, 9]), (0, 3))
    queries, answers = [TEXTS[1], TEXTS[0]], [TEXTS[2], TEXTS[0]]
    expected = [[[states[q][i] @ states[d][i] for d in answers] for i in (0, 3)] for q in queries]
    np.testing.assert_allclose(layer_targets.scores, expected, rtol=3e-3, atol=0.03)  # kept in 16 bits
    np.testing.assert_allclose(layer_targets.documents[1, 1], states[TEXTS[0]][3], atol=3e-3)
    torch.testing.assert_close(stored.scores(np.array([4, 1]), np.array([0, 9]), (0, 3)).scores, layer_targets.scores)
    assert layer_targets.is_scored.all() and layer_targets.is_scored.shape == (2, 2)
    monkeypatch.setattr(layer_store, "encode", lambda *_, **__: pytest.fail("read twice"))
    again = read_layers(tiny_tower, [0, 2, 3])
    np.testing.assert_array_equal(again.texts.states, stored.texts.states)
    with pytest.raises(pytest.fail.Exception, match="read twice"):
        read_layers(tiny_tower, [1])


def test_states_are_projected_to_few_dimensions_that_keep_products_in_the_mean(tiny_tower: Path) -> None:
    stored = read_layers(tiny_tower, [3], state_dim=8)
    matrix = random_projection(32, 8).double().numpy()
    expected = states_by_hand(tiny_tower, TEXTS[0])[3] @ matrix
    np.testing.assert_allclose(stored.texts.states[0, 0], expected, atol=1e-2)
    wide = random_projection(200, 50).double()
    np.testing.assert_allclose((wide @ wide.T).diagonal().mean(), 1, atol=0.02)
    np.testing.assert_allclose((wide @ wide.T).numpy(), np.eye(200), atol=0.9)


def test_a_students_states_are_its_layers_pooled_and_its_embedding_stays(tiny_tower: Path) -> None:
    tower = load_tower(tiny_tower)
    student = TransformerStudent(tower)
    tokens = student.tokenize(TEXTS, 32)
    rows = np.arange(3)
    embeddings, states = student.embed_layers(tokens, rows, [1, 3])
    torch.testing.assert_close(embeddings, student.embed(tokens, rows))
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(states[row].detach(), states_by_hand(tiny_tower, text)[[1, 3]], atol=1e-5)
    np.testing.assert_allclose(embeddings.detach(), states[:, 1].detach(), atol=1e-6)  # before its normalisation
    network: Any = tower[0]
    assert not network.auto_model.config.output_hidden_states
    assert encode(tower, TEXTS, "query").shape == (3, 32)


def test_states_of_another_width_are_mapped_by_each_layers_own_matrix() -> None:
    torch.manual_seed(0)
    states = torch.randn(2, 2, 6)
    projection = random_projection(6, 4)
    assert maps_between(6, 6, None, 3) is None
    fixed = LayerPairs(2, "random", [0, 1], 3, 7, maps_between(6, 4, projection, 3))
    torch.testing.assert_close(fixed.mapped(states, (0, 2)), states @ projection)
    assert not list(fixed.parameters()) and not any("matrix" in name for name in fixed.state_dict())
    trained = LayerPairs(2, "random", [0, 1], 3, 7, maps_between(6, 4, random_projection(9, 4), 3))
    weights = [trained.maps[layer].weight for layer in (0, 2)]  # type: ignore[index, union-attr]
    expected = torch.stack([states[:, at] @ weights[at].T for at in (0, 1)], dim=1)
    torch.testing.assert_close(trained.mapped(states, (0, 2)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"start": {"fresh": {"layers": 2, "dim": 16, "heads": 2, "vocabulary": 0}}}])
def test_over_the_frozen_index_the_teacher_never_runs_in_the_loop(
    embedded: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    students = distill_params().model_dump(exclude_unset=True)["student"]
    losses = students["ranked"]["losses"] + students["layered"]["losses"][1:]
    params = distill_params(student=students | {"it": students["layered"] | {"losses": losses} | changes})
    run_distill(embedded, "it", params)  # reads the layers of the teacher
    forward = BertModel.forward

    def refuse_the_teacher(self: BertModel, *arguments: Any, **more: Any) -> Any:
        assert len(self.encoder.layer) != 4, "the teacher ran"
        return forward(self, *arguments, **more)

    monkeypatch.setattr(BertModel, "forward", refuse_the_teacher)
    tower = load_tower(run_distill(embedded, "it", params) / "query_encoder")
    assert not any("maps" in name for name in tower.state_dict())  # it serves without what only trained it
    assert encode(tower, TEXTS, "query").shape == (3, 32)
    with pytest.raises(AssertionError, match="the teacher ran"):
        encode(load_tower(embedded / "models/teach/dense/tower"), TEXTS, "query")
