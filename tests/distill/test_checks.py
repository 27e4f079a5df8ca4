"""What would make a student learn the wrong thing silently stops the run, with the reason and the fix."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import RobertaConfig, RobertaModel

from slimtower.common.errors import UserError
from steps.distill.checks import (
    check_candidates,
    check_document_tokens,
    check_repeats,
    check_size,
    check_student,
    check_temperatures,
)
from steps.distill.losses.layer import LayerDistillation, warn_of_temperature
from steps.distill.losses.score import ScoreKl, ScoreMargin, ScoreSoftmax
from steps.distill.params import Phase
from steps.distill.score_tables import ScoreTable
from steps.distill.tokens import Tokens
from steps.distill.trainer import LossMeter, _batches, mean_vector_cosine
from steps.encoders.towers import load_tower

PARTS = np.array(["titles"] * 8 + ["sentences"] * 4)
COUNTS = {"titles": {"kept": 8}, "sentences": {"kept": 4}, "unlabelled_queries": {"kept": 0, "empty": 3}}


def student(rows: int, dim: int) -> Any:
    table = StaticEmbedding(Tokenizer(WordLevel({"a": 0}, unk_token="a")), embedding_weights=torch.ones(rows, dim))
    return SimpleNamespace(tower=[table], embed=lambda tokens, rows: torch.ones(len(rows), dim))


@pytest.mark.parametrize(
    ("rows", "width", "dims", "message"),
    [(4, 3, [], "vocabulary ends at 3"), (5, 2, [], "embeds in 2"), (5, 3, [2, 3], r"dims \[3\]"), (5, 3, [4], "dims")],
)
def test_a_student_of_too_few_rows_or_another_dimension_or_dims_that_cut_nothing_is_refused(
    rows: int, width: int, dims: list[int], message: str
) -> None:
    tokens = Tokens(np.array([0, 4]), np.array([0, 2]), np.array([2]))
    check_student(student(5, 3), tokens, 3, [2])
    with pytest.raises(UserError, match=message):
        check_student(student(rows, width), tokens, 3, dims)


def test_parts_without_texts_are_left_out_with_one_line_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    counts = COUNTS | {
        "generated_queries": {"kept": 0, "repeated": 0, "evaluation_query": 0, "empty": 0},
        "spans": {"kept": 0, "repeated": 5, "evaluation_query": 2},
    }
    weights: Any = {"titles": 1.0, "unlabelled_queries": 1.0, "generated_queries": 1.0, "spans": 0.5, "sentences": 0.1}
    absent = check_repeats(weights, PARTS, np.arange(12), counts)
    assert absent == ["generated_queries", "sentences", "spans", "unlabelled_queries"]
    [line] = capsys.readouterr().err.splitlines()
    assert "generated_queries, unlabelled_queries (" in line and "5 repeat other texts and 2 are evaluation" in line
    assert check_repeats({"titles": 1.0, "unlabelled_queries": 0.0}, PARTS, np.arange(12), COUNTS) == []
    assert check_repeats({"titles": 1.0, "sentences": 2.0}, PARTS, np.arange(8), COUNTS) == ["sentences"]
    with pytest.raises(UserError, match="no text is left"):
        check_repeats({"unlabelled_queries": 1.0}, PARTS, np.arange(12), COUNTS)


def test_a_required_part_must_have_texts_and_of_spans_that_were_not_needed_nothing_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights: Any = {"titles": 1.0, "spans": 1.0}
    assert check_repeats(weights, PARTS, np.arange(12), COUNTS, ["titles"]) == [] and not capsys.readouterr().err
    weights |= {"unlabelled_queries": 1.0}
    for part, message in (("spans", "embed.parts"), ("unlabelled_queries", "no texts")):
        with pytest.raises(UserError, match=f"{part} must train, but .*{message}"):
            check_repeats(weights, PARTS, np.arange(12), COUNTS, [part])


def test_an_epoch_without_a_text_ends_the_training() -> None:
    """A tenth of four titles."""
    data: Any = SimpleNamespace(training=np.arange(4), parts=np.array(["titles"] * 4))
    params: Any = SimpleNamespace(repeats={"titles": 0.1}, seed=1)
    schedule: Any = SimpleNamespace(batch_size=2)
    with pytest.raises(UserError, match=r"^distill\.repeats: .*titles .* 4 "):
        next(_batches(data, schedule, params, pads=False))


def test_positions_of_a_roberta_begin_after_its_padding() -> None:
    config = RobertaConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
        max_position_embeddings=6, pad_token_id=1,
    )  # fmt: skip
    reader: Any = SimpleNamespace(tower=[SimpleNamespace(auto_model=RobertaModel(config))])
    four, five = (Tokens(np.full(count, 3), np.array([0, count])) for count in (4, 5))
    check_document_tokens(reader, four)
    reader.tower[0].auto_model(torch.full((1, 4), 3))  # as it says
    with pytest.raises(UserError, match=r"max_document_length: .* 5 tokens, .* 4;"):
        check_document_tokens(reader, five)
    with pytest.raises((IndexError, RuntimeError)):
        reader.tower[0].auto_model(torch.full((1, 5), 3))


def a_step(**terms: tuple[float, bool]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: (torch.tensor(value), torch.tensor(moved)) for name, (value, moved) in terms.items()}


def test_a_term_that_never_moved_the_student_is_named() -> None:
    meter = LossMeter(["l2", "label_softmax"], np.ones((4, 2)))
    meter.add(a_step(l2=(0.5, True), label_softmax=(0.0, False)), np.arange(2))
    meter.add(a_step(l2=(1.5, False), label_softmax=(1.0, False)), np.arange(2))
    assert meter.close(2) == {"train_loss": 1.5, "train_loss.l2": 1.0, "train_loss.label_softmax": 0.5}
    with pytest.raises(UserError, match=r"label_softmax .* 2 steps"):
        meter.check_terms(2)
    meter.add(a_step(l2=(1.0, False), label_softmax=(1.0, True)), np.arange(2))
    meter.close(3)
    meter.check_terms(3)  # each of them moved it in some step


@pytest.mark.parametrize("resumed", [False, True])
def test_no_term_is_named_before_each_text_was_seen_nor_where_a_kill_hid_steps(resumed: bool) -> None:
    meter = LossMeter(["l2", "label_softmax"], np.ones((4, 2)), {"l2"}, 40, resumed=resumed)
    meter.add(a_step(l2=(0.5, True), label_softmax=(0.0, False)), np.arange(2))
    meter.close(20)
    meter.check_terms(20)
    for step, last in ((39, True), (40, False)):
        if resumed and last:  # what moved it may have been in a step that the killed run did not tell of
            meter.check_terms(step, last=last)
            continue
        with pytest.raises(UserError, match=f"label_softmax .* {step} steps"):
            meter.check_terms(step, last=last)


def test_one_term_is_the_loss_and_must_be_a_number() -> None:
    targets = np.array([[1.0, 1.0], [1.0, np.nan]])
    meter = LossMeter(["l2"], targets)
    meter.add(a_step(l2=(0.5, True)), np.array([0]))
    assert meter.close(1) == {"train_loss": 0.5}
    for row, complaint in ((0, "lower the student's learning_rate"), (1, "1 vectors of the texts up to step 2")):
        meter = LossMeter(["l2"], targets)
        meter.add(a_step(l2=(math.nan, True)), np.array([row]))
        with pytest.raises(UserError, match=complaint):
            meter.close(2)


LABELS = {3: np.array([0])}


SHORT = {"epochs": 1.0, "learning_rate": 1e-3}


def phase(*kinds: str, **more: Any) -> Phase:
    return Phase.model_validate({"losses": [{"kind": kind} for kind in kinds]} | SHORT | more)


def test_losses_without_labels_or_candidates_are_refused() -> None:
    both = phase("label_softmax", "label_binary", "score_binary")
    check_candidates(both, LABELS, np.array([2, 3]))
    with pytest.raises(UserError, match=r"label_softmax, label_binary .*labels: source"):
        check_candidates(both, LABELS, np.array([2]))
    scores = phase("score_squared", "embedding")
    check_candidates(scores, LABELS, np.array([3]))
    check_candidates(phase("score_squared", "embedding", teacher_top_k=2), {}, np.array([3]))
    with pytest.raises(UserError, match=r"student: score_squared .*teacher_top_k"):
        check_candidates(scores, LABELS, np.array([2]))


def test_layers_want_labels_where_these_weigh_them_alone() -> None:
    layers = {"kind": "layer_distillation", "layers": 1}
    for knobs in ({}, {"reweighting": False, "selection": "weighted"}, {"reweighting": False}):
        phase = Phase.model_validate(SHORT | {"losses": [layers | knobs], "teacher_top_k": 2})
        check_candidates(phase, LABELS, np.array([3]))
        if knobs == {"reweighting": False}:
            check_candidates(phase, LABELS, np.array([2]))
            continue
        with pytest.raises(UserError, match="layer_distillation needs labels"):
            check_candidates(phase, LABELS, np.array([2]))


def test_the_least_cosine_is_that_of_the_mean_vector() -> None:
    vectors = np.random.default_rng(4).normal(loc=1.5, size=(40, 6)).astype(np.float32)
    mean = [math.fsum(float(row[at]) for row in vectors) / 40 for at in range(6)]
    cosines = [
        math.fsum(float(x) * m for x, m in zip(row, mean, strict=True))
        / math.sqrt(math.fsum(float(x) ** 2 for x in row) * math.fsum(m * m for m in mean))
        for row in vectors
    ]
    assert mean_vector_cosine(vectors) == pytest.approx(math.fsum(cosines) / 40)
    assert mean_vector_cosine(np.ones((3, 2), dtype=np.float16)) < 1  # all alike: what is left to learn is divided by
    assert mean_vector_cosine(np.zeros((3, 2))) == 0


def spread_table(scales: list[float]) -> ScoreTable:
    """Scores of the nearest documents, which not all texts have: those of others point at what would be one-hot."""
    documents, positions = np.tile(np.arange(6), (200, 1)), np.arange(1200).reshape(200, 6)
    documents[50:, 4:], documents[100:] = -1, -1
    values = np.float16(np.random.default_rng(4).normal(size=(1200, 3)) * scales)
    values[600:] = 3e4
    return ScoreTable(documents, positions, values)


@pytest.mark.parametrize(
    ("loss", "warning"),
    [
        (ScoreKl(kind="score_kl", teacher="late"), "score_kl: over 4 documents of a text late's .* one-hot"),
        (ScoreSoftmax(kind="score_softmax", teacher="late", teacher_temperature=1.0), ""),
        (ScoreSoftmax(kind="score_softmax", teacher="late", teacher_temperature=90.0), "flat at temperature 90"),
        (ScoreMargin(kind="score_margin", teacher="late"), ""),
        (ScoreKl(kind="score_kl"), ""),  # the index teacher's are not stored
    ],
)
def test_a_teachers_scores_are_judged_at_the_temperature_at_which_they_are_learned(
    capsys: pytest.CaptureFixture[str], loss: Any, warning: str
) -> None:
    table = spread_table([3, 3, 3])
    check_temperatures(
        [loss], {"late": ScoreTable(table.documents, table.positions, np.float32(table.values[:, 0]))}, 4
    )
    stderr = capsys.readouterr().err
    assert re.search(f"distill: WARNING: .*{warning}", stderr) if warning else not stderr


@pytest.mark.parametrize(
    ("scales", "knobs", "layers", "warning"),
    [
        ([40, 40, 50], {}, range(3), r"\(one-hot: 1, 2, 3\): set teacher_temperature: \d\d in"),
        ([40, 40, 50], {"teacher_temperature": 40.0}, range(3), ""),
        ([40, 40, 50], {"temperature": 40.0}, range(3), ""),
        ([1e-4, 1e-4, 1.0], {}, range(3), r"\(flat: 1, 2\): no one"),
        ([1e-4, 1e-4, 1.0], {}, [2], ""),  # only layers that may be paired are judged
        ([1e-4, 1.0, 1.0], {}, range(3), ""),
        ([0, 0, 0], {}, range(3), r"\(constant: 1, 2, 3\): no one"),
    ],
)
def test_layers_of_a_teacher_are_judged_at_the_temperature_at_which_they_are_learned(
    capsys: pytest.CaptureFixture[str],
    scales: list[float],
    knobs: dict[str, float],
    layers: Sequence[int],
    warning: str,
) -> None:
    loss = LayerDistillation(kind="layer_distillation", layers=2, teacher="late", **knobs)
    warn_of_temperature(loss, spread_table(scales), 4, layers)
    stderr = capsys.readouterr().err
    assert not stderr or "over 4 documents" in stderr
    assert re.search(f"distill: WARNING: layer_distillation: layers of .*{warning}", stderr) if warning else not stderr


@pytest.mark.medium
def test_a_student_that_no_release_can_hold_stops_before_it_trains(
    tiny_tower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = load_tower(tiny_tower)
    check_size(tower)
    weights = sum(weight.numel() for weight in tower.parameters())
    monkeypatch.setattr("steps.distill.checks.LARGEST_GRAPH", 4 * weights)
    check_size(tower)
    monkeypatch.setattr("steps.distill.checks.LARGEST_GRAPH", 4 * weights - 1)
    with pytest.raises(UserError, match=r"million weights, .*distill\.students"):
        check_size(tower)
