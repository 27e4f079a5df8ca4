"""Attention maps: the loss against a loop in float64, and a student that learns to look as its teacher does."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from late_fakes import LATE
from recorder import Recorder
from stages import ALIGNED, FAST, distill_params, run_distill

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.distill.losses.attention import Attention, AttentionMaps, attention_maps, other_network
from steps.distill.losses.base import Batch, Outputs, Targets
from steps.distill.objective import Objective
from steps.distill.params import StudentParams
from steps.distill.students import TransformerStudent
from steps.encoders.towers import load_tower
from steps.retrieval.rankers import load_ranker
from steps.teach.late_interaction import late_interaction_model

LENGTHS = [3, 2]
NOTHING = torch.zeros((2, 0), dtype=torch.bool)


def maps(seed: int) -> torch.Tensor:
    """Two texts, the second padded; two layers of two heads."""
    attention = torch.zeros((2, 2, 2, 3, 3), dtype=torch.float64)
    scores = torch.from_numpy(np.random.default_rng(seed).normal(size=attention.shape))
    for text, length in enumerate(LENGTHS):
        attention[text, :, :, :length, :length] = scores[text, :, :, :length, :length].softmax(dim=-1)
    return attention


def values(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    vectors = torch.zeros(2, 4)
    targets = Targets(vectors, vectors, cosine=True, provided={"attention": (student, teacher)})
    return Attention(kind="attention").values(Outputs(vectors, vectors), targets, Batch(NOTHING, NOTHING, NOTHING))


def test_value_is_the_formula_and_its_gradient_is_right() -> None:
    student, teacher = maps(1), maps(2)
    for text, value in enumerate(values(student, teacher).tolist()):
        total = 0.0
        for layer in range(2):
            for head in range(2):
                for looker in range(LENGTHS[text]):
                    for token in range(LENGTHS[text]):
                        index = text, layer, head, looker, token
                        total += (float(teacher[index]) - float(student[index])) ** 2 / LENGTHS[text] / 4
        assert value == pytest.approx(total, rel=1e-12)
    assert torch.autograd.gradcheck(lambda student_maps: values(student_maps, teacher), student.requires_grad_())


@pytest.mark.medium
def test_maps_are_those_of_each_text_alone_and_of_the_layers_that_answer(tiny_tower: Path) -> None:
    tower = load_tower(tiny_tower)[0].auto_model
    student = TransformerStudent(load_tower(tiny_tower))
    pair = AttentionMaps(student, tower, "fp32")
    tokens = student.tokenize(["how to sum the axis", "window"], 32)
    batched = pair.forward(tokens, np.array([0, 1]))
    torch.testing.assert_close(batched["student"], batched["teacher"])
    alone = pair.forward(tokens, np.array([1]))["student"]
    length = alone.shape[-1]
    torch.testing.assert_close(batched["student"][1:, :, :, :length, :length], alone, rtol=1e-4, atol=1e-6)
    assert not batched["student"][1, :, :, length:].any()
    network = student.network
    network.encoder.layer = network.encoder.layer[:2]
    network.config.num_hidden_layers = 2
    assert AttentionMaps(student, tower, "fp32").layers == [1, 3]
    network.config.num_attention_heads = 2
    with pytest.raises(UserError, match="teacher has 4 and the student 2"):
        AttentionMaps(student, tower, "fp32")


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["late", "cross"])
def test_a_student_learns_to_look_as_a_teacher_of_another_kind(embedded: Path, tiny_tower: Path, kind: str) -> None:
    folder, ids = embedded / "models/teach" / kind, torch.tensor([[2, 9, 11, 3]])
    with torch.random.fork_rng():
        torch.manual_seed(5)
        if kind == "late":
            model = late_interaction_model(LATE.model_copy(update={"base": str(tiny_tower)}))
        else:
            model = load_ranker(tiny_tower, 24, seed=5)
        for weight in model[0].auto_model.parameters():  # type: ignore[union-attr]
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(str(folder / "tower"), create_model_card=False)
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    student = TransformerStudent(load_tower(tiny_tower))
    networks: list[Any] = [other_network(folder / "tower", student), model[0].auto_model]
    for network in networks:
        network.set_attn_implementation("eager")
    loaded_maps, model_maps = (attention_maps(network, features) for network in networks)
    torch.testing.assert_close(loaded_maps, model_maps, rtol=1e-4, atol=1e-5)
    provider = AttentionMaps(
        student, other_network(folder / "tower", student), "fp32", fingerprint(folder / "tower").id
    )
    nobody: Any = SimpleNamespace(arrays={})
    arrays = Objective([], nobody, providers={"attention@it": provider}).arrays  # a checkpoint is of these alone
    assert arrays["attention@it.teacher"].tobytes().hex() == fingerprint(folder / "tower").id
    loss = {"kind": "attention", "teacher": kind}
    described = FAST | {"start": {"layers": [1, 2]}, "losses": [*ALIGNED, loss], "epochs": 4.0}
    student_params = {"it": StudentParams.model_validate(described)}
    run, params = Recorder(), distill_params().model_copy(update={"students": [], "student": student_params})
    output = run_distill(embedded, "it", params, run)
    assert load_tower(output / "query_encoder")[0].auto_model.config._attn_implementation == "sdpa"
    losses = run.of(f"train_loss.attention@{kind}")
    assert losses[-1] < losses[0]
    assert distill_params(students=["it"], student={"it": described}).students == ["it"]


@pytest.mark.medium
def test_what_has_other_tokens_cannot_be_looked_at(tiny_tower: Path, tmp_path: Path) -> None:
    student = TransformerStudent(load_tower(tiny_tower))
    with pytest.raises(UserError, match=r"gone: cannot be loaded .* attention"):
        other_network(tmp_path / "gone", student)
    student.tower.tokenizer.add_tokens(["unheard-of"])
    with pytest.raises(UserError, match="has other tokens than the student"):
        other_network(tiny_tower, student)
