"""Every method trains end to end, lowers its loss, and is refused where it would learn nothing."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorder import Recorder
from sentence_transformers import SentenceTransformer
from stages import EMBED, SCORE, STATIC, distill_params, run_distill, run_embed, run_score, run_stage
from towers import write_other_teacher
from weights import assert_close_weights, weights_of

import steps.distill.run as stage
import steps.distill.trainer as trainer
import steps.score.run as score_run
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.tables import read_table
from steps.distill.objective import Objective
from steps.distill.params import DistillParams
from steps.distill.students import Student
from steps.distill.trainer import Alignment
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.medium

TEXTS = ["how to sum the axis", "window", "a mean of a matrix over the last axis of a file"]
SHORT = {"epochs": 2.0, "batch_size": 16, "learning_rate": 3e-3, "warmup_ratio": 0.1}
TWO_LAYERS = SHORT | {"start": {"layers": [0, -1]}}
EVERY_LOSS = [
    {"kind": "label_softmax", "temperature": 0.2},
    {"kind": "label_binary", "weight": 0.02},
    {"kind": "score_softmax", "temperature": 0.2},
    {"kind": "score_binary", "weight": 0.02},
    {"kind": "score_squared", "weight": 0.05},
    {"kind": "embedding", "distance": "l2"},
]
ALIGNED = TWO_LAYERS | {"losses": [{"kind": "embedding"}]}
RANKED = TWO_LAYERS | {"losses": EVERY_LOSS, "teacher_top_k": 2}
FRESH = {"fresh": {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 300}}
THEN = {
    "epochs": 1.0,
    "learning_rate": 1e-3,
    "losses": [{"kind": "label_softmax"}, {"kind": "score_softmax"}],
    "teacher_top_k": 2,
}
LAYERS = {"kind": "layer_distillation", "layers": 2, "weights_by": "batch"}
TOGETHER = [
    {"kind": "label_softmax", "temperature": 0.2},
    {"kind": "teacher_label_softmax", "temperature": 0.2},
    {"kind": "mutual_kl", "temperature": 0.2},
    LAYERS,
]
STUDENTS: dict[str, dict[str, Any]] = {
    "cosine with dims": TWO_LAYERS | {"losses": [{"kind": "embedding", "distance": "cosine", "dims": [4, 16]}]},
    "attention": TWO_LAYERS | {"losses": [{"kind": "embedding"}, {"kind": "attention"}]},
    "asymmetric": RANKED,
    "asymmetric, pseudo-labels": RANKED | {"labels": "pseudo"},
    "asymmetric, labels of the documents": RANKED | {"labels": "source"},
    "symmetric": RANKED | {"towers": "symmetric", "losses": [*EVERY_LOSS, {"kind": "document_embedding"}]},
    "layers": RANKED | {"losses": [{"kind": "embedding"}, LAYERS], "start": {"layers": [0, 1, -1]}},
    "teacher trains along": RANKED
    | {"losses": TOGETHER, "start": {"layers": [0, 1, -1]}, "towers": "symmetric", "targets": "joint"},
    "joint": RANKED | {"towers": "joint", "max_document_length": 24},
    "qkd": SHORT | {"start": FRESH, "losses": [{"kind": "qkd"}], "batch_size": 64, "epochs": 8.0},
    "static, then ranked": STATIC | {"then": [THEN | {"labels": "pseudo"}]},
    "aligned, then ranked": ALIGNED | {"then": [THEN]},
}


@pytest.fixture(scope="module")
def root(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    teacher = load_tower(tiny_tower)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.mul_(10 if weight.ndim > 1 else 1)  # a small random network embeds all texts nearly alike
    teacher.save_pretrained(str(folder / "teacher"), create_model_card=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
        run_embed(folder, folder / "teacher")
    return folder


def params_with(student: dict[str, Any], **changes: Any) -> DistillParams:
    return distill_params(student=distill_params().model_dump()["student"] | {"it": student}, **changes)


def loss(student: Student, objective: Objective, data: Alignment) -> float:
    """The objective over every fourth text, as one batch."""
    rows = data.training[::4]
    with torch.no_grad():
        tensors = objective.forward(student, data.tokens, rows, rows, 0)
        return sum(float(term) for term in objective.terms(student, tensors, rows, rows, 0).values())


@pytest.mark.parametrize("student", STUDENTS.values(), ids=STUDENTS)
def test_every_objective_lowers_its_loss(root: Path, student: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[tuple[float, float]] = []

    def watched(trained: Student, objective: Objective, data: Alignment, *rest: Any) -> dict[str, float]:
        before = loss(trained, objective, data)
        figures = trainer.train(trained, objective, data, *rest)
        losses.append((before, loss(trained, objective, data)))
        return figures

    monkeypatch.setattr(stage, "train", watched)
    output = run_distill(root, "it", params_with(student))
    assert len(losses) == (2 if "then" in student else 1)
    assert all(after < before for before, after in losses), losses
    report = read_json(output / "report.json")
    assert report["losses"] == [loss["kind"] for loss in student["losses"]]
    tower = SentenceTransformer(str(output / "query_encoder"), device="cpu")
    assert tower.encode_query(TEXTS).shape == (3, 32)
    np.testing.assert_allclose(np.linalg.norm(tower.encode_query(TEXTS), axis=1), 1, atol=1e-5)


def test_the_report_says_what_an_automatic_temperature_became(root: Path) -> None:
    def ranked(temperature: float | str) -> Path:
        losses = [{"kind": "embedding"}, {"kind": "score_softmax", "temperature": temperature}]
        return run_distill(root, "it", params_with(STATIC | {"losses": losses, "labels": "pseudo", "teacher_top_k": 2}))

    output = ranked("auto")
    automatic = weights_of(output / "query_encoder")
    [temperature] = read_json(output / "report.json")["temperatures"].values()
    fixed = weights_of(ranked(temperature) / "query_encoder")
    assert all(torch.equal(fixed[name], automatic[name]) for name in automatic)
    assert read_json(output / "report.json")["temperatures"] == {}  # nothing was automatic


@pytest.mark.slow
def test_a_student_that_reads_documents_has_the_held_out_texts_of_one_that_does_not(root: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(root, tmp_path / "with documents"))
    run_stage("embed", folder, folder / "data/embed", EMBED.model_copy(update={"parts": [*EMBED.parts, "documents"]}))
    held_out, texts_seen = [], []
    for share in (0.0, 0.5):
        output = run_distill(folder, "it", params_with(STATIC | {"document_share": share}))
        held_out.append(read_table(output, "held_out"))
        texts_seen.append(read_json(output / "report.json")["texts_seen"])
    assert held_out[0].equals(held_out[1])
    assert texts_seen[1] == pytest.approx(2 * texts_seen[0], rel=0.05)


def opened(root: Path, student: dict[str, Any]) -> tuple[SentenceTransformer, SentenceTransformer]:
    """Its router, and the teacher; the route of queries is the student itself."""
    output = run_distill(root, "it", params_with(student))
    folders = output / "query_encoder", output / "router", root / "models/teach/dense/tower"
    alone, routed, teacher = (SentenceTransformer(str(folder), device="cpu") for folder in folders)
    np.testing.assert_allclose(routed.encode_query(TEXTS), alone.encode(TEXTS), atol=1e-6)
    return routed, teacher


@pytest.mark.slow
def test_documents_are_read_by_a_symmetric_student_or_by_the_teacher_that_trains_with_a_joint_one(root: Path) -> None:
    routed, teacher = opened(root, STUDENTS["symmetric"])
    np.testing.assert_allclose(routed.encode_document(TEXTS), routed.encode_query(TEXTS), atol=1e-6)
    assert np.abs(routed.encode_document(TEXTS) - teacher.encode(TEXTS)).max() > 1e-3
    routed, teacher = opened(root, STUDENTS["joint"])
    assert np.abs(routed.encode_document(TEXTS) - teacher.encode(TEXTS)).max() > 1e-3
    assert np.abs(routed.encode_document(TEXTS) - routed.encode_query(TEXTS)).max() > 1e-3
    trained = routed[0].sub_modules["document"][0].auto_model.state_dict()  # type: ignore[union-attr]
    before = teacher[0].auto_model.state_dict()  # type: ignore[union-attr]
    assert trained.keys() == before.keys()
    moved = [name for name in before if name.startswith("encoder") and name.endswith("dense.weight")]
    assert moved and not any(torch.equal(trained[name], before[name]) for name in moved)
    unmoved, _ = opened(root, STUDENTS["joint"] | {"learning_rate": 1e-30})
    np.testing.assert_allclose(unmoved.encode_document(TEXTS), teacher.encode(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_a_teacher_that_trains_along_changes_and_is_kept_beside_the_student(root: Path) -> None:
    report = run_distill(root, "it", params_with(STUDENTS["teacher trains along"])) / "report.json"
    assert read_json(report)["losses"] == [loss["kind"] for loss in TOGETHER]
    before, after = (load_tower(folder) for folder in (root / "models/teach/dense/tower", report.parent / "teacher"))
    assert np.abs(after.encode(TEXTS) - before.encode(TEXTS)).max() > 1e-3
    still = run_distill(
        root,
        "it",
        params_with(STUDENTS["teacher trains along"] | {"targets": "stored", "losses": [TOGETHER[0], LAYERS]}),
    )
    assert not (still / "teacher").exists()


@pytest.mark.slow
def test_a_second_phase_begins_where_the_first_ended(root: Path) -> None:
    plain = weights_of(run_distill(root, "it", params_with(ALIGNED)) / "query_encoder")
    still = THEN | {"learning_rate": 1e-30}
    unmoved = weights_of(run_distill(root, "it", params_with(ALIGNED | {"then": [still]})) / "query_encoder")
    moved = weights_of(run_distill(root, "it", params_with(ALIGNED | {"then": [THEN]})) / "query_encoder")
    assert all(torch.equal(tensor, unmoved[name]) for name, tensor in plain.items())
    assert not all(torch.equal(tensor, moved[name]) for name, tensor in plain.items())


def test_a_term_that_can_never_move_the_student_stops_the_run(root: Path) -> None:
    two = [{"kind": "embedding", "distance": "l2"}, {"kind": "score_softmax"}]
    lone = RANKED | {"losses": two, "labels": "pseudo", "teacher_top_k": 1}
    with pytest.raises(UserError, match=r"score_softmax .* 23 steps"):
        run_distill(
            root, "it", params_with(lone | {"batch_size": 1, "epochs": 0.1})
        )  # one candidate: it has all probability


@pytest.mark.slow
@pytest.mark.parametrize("name", ["symmetric", "joint", "static, then ranked", "teacher trains along"])
def test_small_passes_give_the_same_student(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: set[int] = set()
    forward = Objective.forward

    def remember(self: Objective, trained: Any, texts: Any, piece: np.ndarray, *rest: Any) -> Any:
        sizes.add(len(piece))
        return forward(self, trained, texts, piece, *rest)

    monkeypatch.setattr(Objective, "forward", remember)
    student = STUDENTS[name] | {"epochs": 1.0}
    unsplit = run_distill(root, "it", params_with(student))
    assert max(sizes) >= 16
    expected = weights_of(unsplit / "query_encoder")
    embedded = SentenceTransformer(str(unsplit / "query_encoder"), device="cpu").encode(TEXTS)
    sizes.clear()
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "5")
    small = run_distill(root, "it", params_with(student))
    assert max(sizes) <= 5
    assert_close_weights(weights_of(small / "query_encoder"), expected, 1e-3)
    again = SentenceTransformer(str(small / "query_encoder"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(again, embedded, rtol=0, atol=1e-4)


def test_a_frozen_teacher_that_runs_along_gives_the_same_student_as_stored_targets(root: Path) -> None:
    stored, online = (
        run_distill(root, "it", params_with(RANKED | {"targets": targets}))
        and weights_of(root / "models/distill/it/query_encoder")
        for targets in ("stored", "online")
    )
    assert_close_weights(online, stored, 5e-3)
    moved = max(float((online[key] - tensor).abs().max()) for key, tensor in stored.items())
    assert moved > 0, "the stored targets are rounded to 16 bits: the students cannot be equal bit for bit"


@pytest.mark.slow
def test_a_student_learns_from_a_second_teachers_scores(root: Path) -> None:
    write_other_teacher(root / "models/teach/dense/tower", root / "models/teach/other", seed=4)
    run_score(root, "other")  # four documents of each text
    scored = {"kind": "score_softmax", "teacher": "other", "temperature": 1.0}
    both = RANKED | {"losses": [{"kind": "embedding"}, scored], "teacher_top_k": 3}
    output = run_distill(root, "it", params_with(both))
    assert read_json(output / "report.json")["losses"] == ["embedding", "score_softmax@other"]
    learned = weights_of(output / "query_encoder")
    alone = weights_of(
        run_distill(root, "it", params_with(both | {"losses": [{"kind": "embedding"}]})) / "query_encoder"
    )
    assert not all(torch.equal(tensor, alone[name]) for name, tensor in learned.items())
    with pytest.raises(UserError, match=r"teacher_top_k is 5, but .*nearest\.npy holds 4"):
        run_distill(root, "it", params_with(both | {"teacher_top_k": 5}))


@pytest.mark.slow
def test_two_teachers_score_in_one_objective_and_texts_that_none_scored_do_not_train(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored_rows = {}
    for name, seed in (("first", 5), ("second", 6)):
        monkeypatch.setattr(score_run, "SEED", seed)
        write_other_teacher(root / "models/teach/dense/tower", root / "models/teach" / name, seed)
        scores = run_score(root, name, SCORE.model_copy(update={"depth": 3, "max_texts": 150}))
        scored_rows[name] = set(read_table(scores, "scores")["text_row"].to_pylist())
        assert len(scored_rows[name]) == 150 and read_json(scores / "report.json")["targets"]["documents"] == 3
    both = [
        {"kind": "score_kl", "teacher": "first", "temperature": 0.2, "teacher_temperature": 0.1},
        {"kind": "score_margin", "teacher": "second"},
    ]
    phase = {"losses": both, "epochs": 1.0, "learning_rate": 1e-3, "teacher_top_k": 3}
    run = Recorder()
    output = run_distill(root, "it", params_with(ALIGNED | {"then": [phase]}), run)
    report = read_json(output / "report.json")
    assert {"phase2.train_loss.score_kl@first", "phase2.train_loss.score_margin@second"} <= run.last.keys()
    alone = read_json(run_distill(root, "it", params_with(ALIGNED)) / "report.json")
    held_out = set(read_table(output, "held_out")["text"].to_pylist())
    texts = read_table(root / "data/embed", "alignment_texts")["text"].to_pylist()
    seen = [row for row in scored_rows["first"] | scored_rows["second"] if texts[row] not in held_out]
    assert report["texts_seen"] - alone["texts_seen"] == len(seen) < alone["texts_seen"]
    with pytest.raises(UserError, match=r"teacher_top_k is 4, .*set score\.depth"):
        run_distill(root, "it", params_with(ALIGNED | {"then": [phase | {"teacher_top_k": 4}]}))
