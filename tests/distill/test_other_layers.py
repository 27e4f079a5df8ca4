"""Layers of teachers of other kinds: what they scored, matched with a student's layers over the frozen index."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from late_fakes import write_late_teacher
from rank_fakes import write_cross_teacher
from recorder import Recorder
from stages import ALIGNED, FAST, SCORE, distill_params, run_distill, run_score, sources_of

from pipeline.params import check_params
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.settings import read_mapping
from steps.core.tables import read_table
from steps.distill.candidates import Candidates
from steps.distill.layer_teachers import ScoredLayers
from steps.distill.losses.base import Batch, Outputs, Targets, Units
from steps.distill.losses.layer import LayerDistillation, provide_layers
from steps.distill.providers import Setting
from steps.distill.score_tables import ScoreTable
from steps.distill.students import TransformerStudent
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.medium

LAYERS: dict[str, Any] = {"kind": "layer_distillation", "layers": 2}


@pytest.fixture(scope="module")
def root(embedded: Path, tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a late interaction model's and a cross encoder's layers have scored three documents of a text."""
    folder = tmp_path_factory.mktemp("layered")
    for name in ("data", "models"):
        shutil.copytree(embedded / name, folder / name)
    write_late_teacher(folder / "models/teach/late", tiny_tower)
    write_cross_teacher(folder / "models/teach/cross", folder / "encoder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
        for name in ("late", "cross"):
            run_score(folder, name, SCORE.model_copy(update={"layers": True, "positives": 2, "depth": 3}))
    return folder


def test_a_tables_layers_are_those_of_the_pairs_wherever_they_stand() -> None:
    draw = np.random.default_rng(4)
    documents = np.array([[3, 7, -1], [7, 1, 9], [-1, -1, -1]])
    positions = np.array([[5, 2, -1], [0, 4, 1], [-1, -1, -1]])
    values = draw.normal(size=(6, 4)).astype(np.float16)
    candidates, rows, layers = np.array([1, 3, 7, 8]), np.array([2, 0, 1]), (1, 3)
    layered = ScoredLayers(ScoreTable(documents, positions, values)).scores(rows, candidates, layers)
    scores, is_scored = layered.scores, layered.is_scored
    assert scores.shape == (3, 2, 4) and is_scored.shape == (3, 4)
    for text, row in enumerate(rows.tolist()):
        for column, document in enumerate(candidates.tolist()):
            at = np.flatnonzero(documents[row] == document)
            assert is_scored[text, column] == bool(len(at))
            expected = values[positions[row, at[0]]][list(layers)] if len(at) else [0, 0]
            np.testing.assert_array_equal(scores[text, :, column], expected)


@pytest.mark.parametrize("name", ["late", "cross"])
@pytest.mark.parametrize("weights_by", ["text", "batch"])
def test_the_loss_is_equations_6_to_8_over_a_texts_own_candidates(root: Path, name: str, weights_by: str) -> None:
    """In float64, from the tables and the networks' own states."""
    sources, params = sources_of(root), distill_params()
    loss = LayerDistillation.model_validate(LAYERS | {"teacher": name, "weights_by": weights_by, "temperature": 0.7})
    tower: Any = load_tower(root / "models/teach/dense/tower")
    network = tower[0].auto_model
    network.encoder.layer = network.encoder.layer[:2]
    network.config.num_hidden_layers = 2
    student = TransformerStudent(tower)
    texts = sources.texts["text"].to_pylist()
    tokens = student.tokenize(texts, 32)
    labelled = sorted(sources.positives)
    rows = np.array(sorted([*labelled[:4], 100, 140]))
    candidates = Candidates(sources.positives, sources.nearest(2), 1)
    setting = Setting(
        student=student, teacher=root / "models/teach/dense/tower", teachers=None, sources=sources,
        candidates=candidates, document_tokens=None, training=rows, units=Units(), cosine=True,
        precision=params.precision, seed=params.seed,
    )  # fmt: skip
    provider = provide_layers(loss, setting)
    drawn_batch = candidates.of(rows, 5)
    provider.prepare(5, rows, drawn_batch)
    pairs = provider.pairs
    raw, states = provider.embed(tokens, rows)
    provided = {loss.name: provider.values({"queries.states": states}, rows, drawn_batch.documents)}
    targets = Targets(raw, raw[:0], cosine=True, provided=provided)
    batch = Batch(*(torch.from_numpy(mask) for mask in (drawn_batch.label, drawn_batch.counts, drawn_batch.is_own)))
    batch_losses = loss.values(Outputs(raw, raw), targets, batch).tolist()

    listed = read_table(root / "data/score" / name, "scores").to_pylist()
    stored = np.load(root / "data/score" / name / "layers.npy").astype(np.float64)
    teacher_scores = {(row["text_row"], row["doc_row"]): stored[position] for position, row in enumerate(listed)}
    index_tower: Any = load_tower(root / "models/teach/dense/tower")
    document_states = documents_states(index_tower, list(sources.document_texts()))
    own_documents = {row: {*sources.nearest(2)[row].tolist(), *sources.positives.get(row, ())} for row in rows.tolist()}

    def shares(scores: np.ndarray) -> np.ndarray:
        raised = np.exp(scores - scores.max())
        return raised / raised.sum()

    losses, values = [], []
    for position, row in enumerate(rows.tolist()):
        columns = [at for at, document in enumerate(drawn_batch.documents.tolist()) if document in own_documents[row]]
        label = np.flatnonzero(drawn_batch.label[position])
        counted_columns = [at for at in columns if drawn_batch.counts[position, at]]
        by_pair, by_label = [], []
        for number, (theirs, ours) in enumerate(zip(pairs.teacher, pairs.student, strict=True)):
            t = np.array([teacher_scores[row, int(drawn_batch.documents[at])][theirs] for at in columns])
            state = states[position, number].detach().double().numpy()
            height = (ours + 1) * 4 // 2 - 1  # of the index teacher's four layers beside the student's two
            s = np.array([document_states[int(drawn_batch.documents[at])][height] @ state for at in columns])
            p, q = shares(t / 0.7), shares(s / 0.7)
            by_pair.append(float((p * (np.log(p) - np.log(q))).sum()))
            counted = shares(
                np.array([teacher_scores[row, int(drawn_batch.documents[at])][theirs] for at in counted_columns])
            )
            by_label.append(-np.log(counted[counted_columns.index(label[0])]) if len(label) else 0.0)
        values.append(np.array(by_pair))
        losses.append(np.array(by_label))
    mean = np.mean(
        [text_losses for text_losses, label in zip(losses, drawn_batch.label, strict=True) if label.any()], axis=0
    )
    for position, (text_losses, by_pair) in enumerate(zip(losses, values, strict=True)):
        weights = shares(-(text_losses if weights_by == "text" else mean) / 10.0)
        assert batch_losses[position] == pytest.approx(float(weights @ by_pair), rel=5e-3, abs=2e-4), position
    assert drawn_batch.label.any(axis=1).sum() == 4 and any(value > 1e-3 for value in batch_losses)


def documents_states(tower: Any, texts: list[str]) -> list[np.ndarray]:
    """Mean state of each layer of each text in 16 bits, as they are stored, float64 `(layers, width)`."""
    all_means = []
    for text in texts:
        tokens = tower.tokenizer(text, return_tensors="pt", truncation=True, max_length=tower.max_seq_length)
        with torch.no_grad():
            states = tower[0].auto_model(**tokens, output_hidden_states=True).hidden_states[1:]
        means = np.stack([state[0].double().numpy().mean(axis=0) for state in states])
        all_means.append(means.astype(np.float16).astype(np.float64))
    return all_means


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("late", {"start": {"layers": [0, 1, -1]}}),
        ("cross", {"start": {"fresh": {"layers": 2, "dim": 16, "heads": 2, "vocabulary": 0}}}),
        ("late", {"start": {"layers": [0, -1]}, "towers": "symmetric", "max_document_length": 32}),
    ],
)
def test_a_student_learns_the_layers_of_a_teacher_of_another_kind(
    root: Path, own_cache: Path, name: str, changes: dict[str, Any]
) -> None:
    labels = {"kind": "label_softmax", "own_candidates": True}
    losses = [labels, LAYERS | {"teacher": name, "selection": "weighted"}]
    student = FAST | {"teacher_top_k": 2, "losses": losses, "epochs": 6.0} | changes
    run = Recorder()
    students = distill_params().model_dump()["student"]
    described = distill_params(student=students | {"it": student}).student
    params = distill_params().model_copy(update={"students": [], "student": described})
    output = run_distill(root, "it", params, run)
    assert read_json(output / "report.json")["losses"] == ["label_softmax", f"layer_distillation@{name}"]
    logged_losses = run.of(f"train_loss.layer_distillation@{name}")
    assert logged_losses[-1] < logged_losses[0] and np.isfinite(logged_losses).all()


def test_what_did_not_score_by_layers_is_told(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "data", tmp_path / "data")
    (tmp_path / "data/score/late/layers.npy").unlink()
    with pytest.raises(UserError, match=r"late/layers\.npy: .*score\.layers: true"):
        sources_of(tmp_path).layer_scores("late", 2)


def test_layers_are_of_a_teacher_that_scores_by_them() -> None:
    raw = read_mapping(Path("params.yaml"))
    raw["teach"]["teachers"].append("late")
    raw["score"]["teachers"].append("late")
    raw["distill"]["student"]["4l"] |= {"losses": [*ALIGNED, LAYERS | {"teacher": "late"}], "teacher_top_k": 4}
    raw["teach"]["teacher"]["late"] = raw["teach"]["teacher"]["dense"]
    raw["score"]["layers"] = True
    with pytest.raises(UserError, match=r"layer_distillation@late .* late a dual_encoder"):
        check_params(raw, "params.yaml")
    raw["teach"]["teacher"]["late"] = {"kind": "late_interaction", "base": "somewhere", "epochs": 0.0}
    check_params(raw, "params.yaml")
    raw["score"]["layers"] = False
    with pytest.raises(UserError, match=r"score\.layers is false and late a late_interaction"):
        check_params(raw, "params.yaml")
