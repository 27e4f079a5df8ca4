"""What would make a student learn the wrong thing silently stops the run, with the reason and the fix."""

import math
import re
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
    check_targets,
    check_temperatures,
    explain_not_finite,
)
from steps.distill.losses.layer import LayerDistillation, warn_of_temperature
from steps.distill.losses.score import ScoreKl, ScoreMargin, ScoreSoftmax
from steps.distill.params import Phase
from steps.distill.score_tables import ScoreTable
from steps.distill.tokens import Tokens
from steps.distill.trainer import LossMeter, _batches, mean_vector_cosine
from steps.encoders.towers import load_tower

TEACHER: Any = SimpleNamespace(tokenizer=[0] * 6, get_embedding_dimension=lambda: 4)
EMBED = Path("data/embed")
PARTS = np.array(["titles"] * 8 + ["sentences"] * 4)
COUNTS = {"titles": {"kept": 8}, "sentences": {"kept": 4}, "unlabelled_queries": {"kept": 0, "empty": 3}}


@pytest.mark.parametrize("shape", [(11, 4), (12, 3), (12,)])
def test_targets_of_other_texts_or_another_dimension_are_refused(shape: tuple[int, ...]) -> None:
    check_targets(EMBED, np.zeros((12, 4)), 12, TEACHER)
    with pytest.raises(UserError, match=r"alignment.npy: holds \(.*12 alignment texts and .* dimension is 4"):
        check_targets(EMBED, np.zeros(shape), 12, TEACHER)


def student(rows: int, dim: int) -> Any:
    table = StaticEmbedding(Tokenizer(WordLevel({"a": 0}, unk_token="a")), embedding_weights=torch.ones(rows, dim))
    return SimpleNamespace(tower=[table], embed=lambda tokens, rows: torch.ones(len(rows), dim))


def test_a_student_without_a_row_for_a_token_or_of_another_dimension_is_refused() -> None:
    tokens = Tokens(np.array([0, 4]), np.array([0, 2]), np.array([2]))
    check_student(student(5, 3), tokens, 3)
    with pytest.raises(UserError, match="gives token 4, but the model's vocabulary ends at 3"):
        check_student(student(4, 3), tokens, 3)
    with pytest.raises(UserError, match=r"embeds in 3 dimensions, but its targets .* have 2"):
        check_student(student(5, 3), tokens, 2)


def test_parts_without_texts_are_left_out_with_one_line_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    counts = COUNTS | {
        "generated_queries": {"kept": 0, "repeated": 0, "evaluation_query": 0, "empty": 0},
        "spans": {"kept": 0, "repeated": 5, "evaluation_query": 2},
    }
    weights: Any = {"titles": 1.0, "unlabelled_queries": 1.0, "generated_queries": 1.0, "spans": 0.5, "sentences": 0.1}
    absent = check_repeats(weights, PARTS, np.arange(12), counts)
    assert absent == ["generated_queries", "sentences", "spans", "unlabelled_queries"]
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        "distill: left out: generated_queries, unlabelled_queries (it has no texts); sentences (0.1"
        " of its 4 texts is not one text); spans (of its texts 5 repeat other texts and 2 are evaluation queries)"
    )
    assert check_repeats({"titles": 1.0, "unlabelled_queries": 0.0}, PARTS, np.arange(12), COUNTS) == []
    assert check_repeats({"titles": 1.0, "sentences": 2.0}, PARTS, np.arange(8), COUNTS) == ["sentences"]
    assert "sentences (all of its 4 texts validate)" in capsys.readouterr().err


def test_a_required_part_without_texts_stops_the_run() -> None:
    weights: Any = {"titles": 1.0, "unlabelled_queries": 1.0}
    with pytest.raises(UserError, match=r"required_parts: unlabelled_queries must train, but it has no texts; give"):
        check_repeats(weights, PARTS, np.arange(12), COUNTS, ["titles", "unlabelled_queries"])
    assert check_repeats(weights, PARTS, np.arange(12), COUNTS, ["titles"]) == ["unlabelled_queries"]


def test_nothing_is_said_of_spans_where_no_texts_were_missing(capsys: pytest.CaptureFixture[str]) -> None:
    weights: Any = {"titles": 1.0, "spans": 1.0}
    assert check_repeats(weights, PARTS, np.arange(12), COUNTS) == [] and not capsys.readouterr().err
    with pytest.raises(UserError, match=r"spans must train, but embed\.parts does not name it"):
        check_repeats(weights, PARTS, np.arange(12), COUNTS, ["spans"])
    left = check_repeats({"titles": 1.0, "random_queries": 1.0}, PARTS, np.arange(12), COUNTS)
    assert left == ["random_queries"] and "random_queries (embed.parts does not name it)" in capsys.readouterr().err


def test_a_mixture_of_which_nothing_is_left_stops_the_run() -> None:
    with pytest.raises(
        UserError, match=r"no text is left to train on \(unlabelled_queries \(it has no texts\)\); give"
    ):
        check_repeats({"unlabelled_queries": 1.0}, PARTS, np.arange(12), COUNTS)


def test_an_epoch_without_a_text_ends_the_training() -> None:
    """A tenth of four titles."""
    data: Any = SimpleNamespace(training=np.arange(4), parts=np.array(["titles"] * 4))
    params: Any = SimpleNamespace(repeats={"titles": 0.1}, seed=1)
    schedule: Any = SimpleNamespace(batch_size=2)
    with pytest.raises(UserError, match=r"an epoch of titles has no text, of 4 that may train; give larger"):
        next(_batches(data, schedule, params, pads=False))


def test_documents_longer_than_a_student_has_positions_are_refused() -> None:
    made = student(5, 3)
    network = SimpleNamespace(
        get_input_embeddings=lambda: made.tower[0].embedding,
        config=SimpleNamespace(max_position_embeddings=2),
        named_modules=tuple,
    )
    reader = SimpleNamespace(tower=[SimpleNamespace(auto_model=network)])
    check_document_tokens(reader, Tokens(np.array([0, 4]), np.array([0, 2])))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"max_document_length: texts have up to 3 tokens, the student reads 2; lower"):
        check_document_tokens(reader, Tokens(np.array([0, 4, 1]), np.array([0, 3])))  # type: ignore[arg-type]


def test_positions_of_a_roberta_begin_after_its_padding() -> None:
    config = RobertaConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
        max_position_embeddings=6, pad_token_id=1,
    )  # fmt: skip
    reader: Any = SimpleNamespace(tower=[SimpleNamespace(auto_model=RobertaModel(config))])
    four, five = (Tokens(np.full(count, 3), np.array([0, count])) for count in (4, 5))
    check_document_tokens(reader, four)
    reader.tower[0].auto_model(torch.full((1, 4), 3))  # as it says
    with pytest.raises(UserError, match=r"max_document_length: texts have up to 5 tokens, the student reads 4; lower"):
        check_document_tokens(reader, five)
    with pytest.raises((IndexError, RuntimeError)):
        reader.tower[0].auto_model(torch.full((1, 5), 3))


def test_a_broken_target_is_named_before_the_learning_rate() -> None:
    good, bad = np.ones((3, 2)), np.array([[1.0, 1.0], [np.inf, 0.0], [np.nan, np.nan]])
    unexplained = str(explain_not_finite("loss", math.nan, 5, good))
    assert "the loss is nan at step 5; lower the student's learning_rate" in unexplained
    assert "2 vectors of the texts up to step 5 are not finite" in str(explain_not_finite("loss", math.nan, 5, bad))


def a_step(**terms: tuple[float, bool]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: (torch.tensor(value), torch.tensor(moved)) for name, (value, moved) in terms.items()}


def test_a_term_that_never_moved_the_student_is_named() -> None:
    meter = LossMeter(["l2", "label_softmax"], np.ones((4, 2)))
    meter.add(a_step(l2=(0.5, True), label_softmax=(0.0, False)), np.arange(2))
    meter.add(a_step(l2=(1.5, False), label_softmax=(1.0, False)), np.arange(2))
    assert meter.close(2) == {"train_loss": 1.5, "train_loss.l2": 1.0, "train_loss.label_softmax": 0.5}
    with pytest.raises(UserError, match="the loss label_softmax gave no gradient in the 2 steps so far"):
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
        with pytest.raises(UserError, match=f"label_softmax gave no gradient in the {step} steps"):
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


@pytest.mark.parametrize("cut", [4, 5])
def test_dims_that_cut_nothing_are_refused(cut: int) -> None:
    tokens = Tokens(np.array([0, 4]), np.array([0, 2]), np.array([2]))
    check_student(student(5, 4), tokens, 4, [3])
    with pytest.raises(UserError, match=rf"dims \[{cut}\] are not below the teacher's, 4"):
        check_student(student(5, 4), tokens, 4, [3, cut])


LABELS = {3: np.array([0])}


def phase(*kinds: str, **more: Any) -> Phase:
    losses = [{"kind": kind} for kind in kinds]
    return Phase.model_validate({"losses": losses, "epochs": 1.0, "learning_rate": 1e-3} | more)


def test_losses_without_labels_or_candidates_are_refused() -> None:
    both = phase("label_softmax", "label_binary", "score_binary")
    check_candidates(both, LABELS, np.array([2, 3]))
    with pytest.raises(UserError, match="label_softmax, label_binary needs labels, but no training query"):
        check_candidates(both, LABELS, np.array([2]))
    scores = phase("score_squared", "embedding")
    check_candidates(scores, LABELS, np.array([3]))
    check_candidates(phase("score_squared", "embedding", teacher_top_k=2), {}, np.array([3]))
    with pytest.raises(UserError, match=r"student: score_squared has no candidate documents; set teacher_top_k"):
        check_candidates(scores, LABELS, np.array([2]))


def test_layers_want_labels_where_these_weigh_them_alone() -> None:
    def layered(**knobs: Any) -> Phase:
        losses = [{"kind": "layer_distillation", "layers": 1} | knobs]
        return Phase.model_validate({"losses": losses, "epochs": 1.0, "learning_rate": 1e-3, "teacher_top_k": 2})

    for knobs in ({}, {"reweighting": False, "selection": "weighted"}):
        check_candidates(layered(**knobs), LABELS, np.array([3]))
        with pytest.raises(UserError, match="layer_distillation needs labels, but no training query"):
            check_candidates(layered(**knobs), LABELS, np.array([2]))
    check_candidates(layered(reweighting=False), LABELS, np.array([2]))


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


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (ScoreKl(kind="score_kl", teacher="late"), "score_kl: over 4 documents of a text late's .* one-hot at .* 0.05"),
        (ScoreSoftmax(kind="score_softmax", teacher="late", teacher_temperature=1.0), ""),
        (ScoreSoftmax(kind="score_softmax", teacher="late", teacher_temperature=90.0), "flat at temperature 90 .*set"),
        (ScoreMargin(kind="score_margin", teacher="late"), ""),
        (ScoreKl(kind="score_kl"), ""),
    ],
)
def test_a_teachers_scores_are_judged_at_the_temperature_at_which_they_are_learned(
    capsys: pytest.CaptureFixture[str], loss: Any, said: str
) -> None:
    """Over the nearest documents of the texts that have them all; the index teacher's are not stored."""
    random = np.random.default_rng(4)
    documents = np.tile(np.arange(6), (200, 1))
    documents[50:, 4:], documents[100:] = -1, -1
    values = random.normal(scale=3, size=documents.size).astype(np.float32)
    table = ScoreTable(documents, np.arange(documents.size).reshape(documents.shape), values)
    check_temperatures([loss], {"late": table}, 4)
    told = capsys.readouterr().err
    assert re.search(f"distill: WARNING: .*{said}", told) if said else not told


@pytest.mark.parametrize(
    ("scales", "knobs", "said"),
    [
        (
            [40, 40, 50],
            {},
            r"late teach nothing at temperature 1 .*\(one-hot: 1, 2, 3\): set teacher_temperature: \d\d in",
        ),
        ([40, 40, 50], {"teacher_temperature": 40.0}, ""),
        ([40, 40, 50], {"temperature": 40.0}, ""),
        ([1e-4, 1e-4, 1.0], {}, r"\(flat: 1, 2\): no one temperature serves; pair others, or leave them out"),
        ([1e-4, 1.0, 1.0], {}, ""),
        ([0, 0, 0], {}, r"\(constant: 1, 2, 3\): no one temperature serves; leave them out"),
    ],
)
def test_layers_of_a_teacher_are_judged_at_the_temperature_at_which_they_are_learned(
    capsys: pytest.CaptureFixture[str], scales: list[float], knobs: dict[str, float], said: str
) -> None:
    """Over the nearest documents of texts that have them all: others point at rows that would be one-hot."""
    random = np.random.default_rng(4)
    documents, places = np.tile(np.arange(6), (200, 1)), np.arange(1200).reshape(200, 6)
    documents[50:, 4:], documents[100:] = -1, -1
    values = np.float16(random.normal(size=(1200, 3)) * scales)
    values[600:] = 3e4
    loss = LayerDistillation(kind="layer_distillation", layers=2, teacher="late", **knobs)
    warn_of_temperature(loss, ScoreTable(documents, places, values), 4, range(3))
    told = capsys.readouterr().err
    assert not told or "over 4 documents" in told
    assert re.search(f"distill: WARNING: layer_distillation: layers of .*{said}", told) if said else not told


def test_only_layers_that_may_be_paired_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    documents, places = np.tile(np.arange(4), (200, 1)), np.arange(800).reshape(200, 4)
    values = np.float16(np.random.default_rng(4).normal(size=(800, 3)) * [1e-4, 1e-4, 1.0])
    loss = LayerDistillation(kind="layer_distillation", layers=1, teacher="cls", selection="last")
    warn_of_temperature(loss, ScoreTable(documents, places, values), 4, [2])
    assert capsys.readouterr().err == ""
    warn_of_temperature(loss, ScoreTable(documents, places, values), 4, [1])
    assert "cls teach nothing at temperature 1 over 4 documents of a text (flat: 2): set" in capsys.readouterr().err


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
    with pytest.raises(UserError, match=r"million weights, .* take it off distill\.students"):
        check_size(tower)
