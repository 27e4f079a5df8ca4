"""A teacher of any kind that trains along with a student: LEAD's losses, and what is left."""

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorder import Recorder
from scoring_teachers import LABELS, LAYERS, joint, write_scoring_teachers
from stages import distill_params, run_distill, sources_of
from torch import Tensor
from weights import assert_close_weights, weights_of

import steps.distill.checkpoints as checkpoints
import steps.distill.trainer as trainer
from slimtower.common.files import read_json, sha256_file
from steps.distill.candidates import CandidateBatch
from steps.distill.checkpoints import Checkpoints
from steps.distill.objective import Objective
from steps.distill.params import DistillParams
from steps.distill.phases import Trainings
from steps.distill.sources import Sources
from steps.distill.students import Student, untrained
from steps.retrieval.late_interaction import load_late_interaction
from steps.retrieval.rankers import load_ranker
from steps.scorers import open_reranker

pytestmark = pytest.mark.medium

OWN = {"towers": "symmetric", "max_document_length": 24}


def params_of(student: dict[str, Any]) -> DistillParams:
    students = distill_params().model_dump()["student"]
    return distill_params(students=["static"], student=students | {"it": student}, repeats={"train_queries": 1.0})


@pytest.fixture(scope="module")
def base(embedded: Path, tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a late interaction model and a cross encoder, neither of which has scored anything."""
    folder = tmp_path_factory.mktemp("joint")
    for name in ("data", "models"):
        shutil.copytree(embedded / name, folder / name)
    write_scoring_teachers(folder, tiny_tower)
    return folder


@pytest.fixture
def root(base: Path, tmp_path: Path) -> Path:
    """The same, for one test."""
    shutil.copytree(base, tmp_path / "root")
    return tmp_path / "root"


def build(root: Path, student: dict[str, Any], rows: np.ndarray) -> tuple[Student, Objective, Sources]:
    """A student that trains on these rows, and its objective."""
    sources, params, tower = sources_of(root), params_of(student), root / "models/teach/dense/tower"
    chosen = params.described("it")
    model = untrained(chosen, tower, sources, rows, params)
    [(objective, *_)] = Trainings(chosen, model, tower, True, sources, rows, params)
    return model, objective, sources


def index_scores(tower: Any, text: str, document: str) -> Tensor:
    """Its cosine, and the product of each layer's mean states, in float64: `(1 + layers,)`."""
    sides = []
    for side, longest in ((text, 32), (document, 24)):
        tokens = tower.tokenizer(side, truncation=True, max_length=longest, return_tensors="pt")
        layers = tower[0].auto_model(**tokens, output_hidden_states=True).hidden_states[1:]
        sides.append(torch.stack([layer[0].mean(dim=0) for layer in layers]))
    query, answer = sides
    return torch.cat([torch.cosine_similarity(query[-1:], answer[-1:]), (query * answer).sum(dim=1)])


def late_scores(model: Any, text: str, document: str) -> Tensor:
    """MaxSim of its vectors, and of each layer's states, in float64: `(1 + layers,)`."""
    sides = []
    for side, task, longest in ((text, "query", None), (document, "document", 24)):
        features = model.preprocess([side], prompt=None, task=task, max_length=longest)
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        states = [state[0] for state in model[0].auto_model(**inputs, output_hidden_states=True).hidden_states[1:]]
        vectors = states[-1] @ model[1].linear.weight.T
        sides.append([vectors / vectors.norm(dim=1, keepdim=True), *states])
    return torch.stack([(query @ answer.T).max(dim=1).values.sum() for query, answer in zip(*sides, strict=True)])


def cross_scores(ranker: Any, text: str, document: str) -> Tensor:
    """Its logit, and its head on each layer's first token, in float64: `(1 + layers,)`."""
    network = ranker.model
    features = ranker.preprocess([(text, document)])
    inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    states = network.bert(**inputs, output_hidden_states=True).hidden_states[1:]
    logits = [network.classifier(torch.tanh(network.bert.pooler.dense(state[0, 0])))[0] for state in states]
    return torch.stack([logits[-1], *logits])


def reference(
    teacher_scores: Tensor,
    tensors: dict[str, Tensor],
    documents: tuple[Tensor, Tensor],
    batch: CandidateBatch,
    is_own: Any,
    at: Any,
) -> dict[str, Tensor]:
    """LEAD's four losses, Eq. 6 to 11, text by text in float64; `given` `(n, m, 1 + layers)` are the teacher's scores.

    `documents` are vectors and states of layers that the student is scored against, `own` each text's candidates.
    """
    raw, states = tensors["queries"].detach().double(), tensors["states"].detach().double()
    vectors, document_states = (tensor.detach().double() for tensor in documents)
    cosines = (raw / raw.norm(dim=1, keepdim=True)) @ (vectors / vectors.norm(dim=1, keepdim=True)).T

    def log_shares(scores: Tensor) -> Tensor:
        return scores - torch.logsumexp(scores, dim=0)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (log_shares(p).exp() * (log_shares(p) - log_shares(q))).sum()

    zero = torch.zeros((), dtype=torch.float64)
    losses = dict.fromkeys(("label", "teacher", "mutual", "layers"), zero)
    labelled = batch.label.any(axis=1).sum()
    for text in range(len(is_own)):
        listed = np.flatnonzero(is_own[text])
        counted = np.flatnonzero(is_own[text] & batch.counts[text])
        label = np.flatnonzero(batch.label[text])
        s, t = cosines[text] / 0.2, teacher_scores[text, :, 0] / 1.5
        losses["mutual"] = losses["mutual"] + (kl(t[listed], s[listed]) + kl(s[listed], t[listed])) / len(is_own)
        by_pair, by_label = [], []
        for number, theirs in enumerate(at.teacher):
            layer = teacher_scores[text, :, 1 + theirs]
            student = document_states[:, number] @ states[text, number]
            by_pair.append(kl(layer[listed] / 0.7, student[listed] / 0.7))
            right = log_shares(layer[counted])[counted.tolist().index(label[0])] if len(label) else zero
            by_label.append(-right.detach())
        weights = torch.softmax(-torch.stack(by_label) / 10, dim=0)
        losses["layers"] = losses["layers"] + (weights * torch.stack(by_pair)).sum() / len(is_own)
        if len(label):
            position = counted.tolist().index(label[0])
            losses["label"] = losses["label"] - log_shares(s[counted])[position] / labelled
            losses["teacher"] = losses["teacher"] - log_shares(t[counted])[position] / labelled
    return losses


@pytest.mark.parametrize(
    ("name", "whole_batch", "towers"),
    [("", True, "symmetric"), ("late", True, "asymmetric"), ("late", False, "symmetric"),
     ("cross", False, "asymmetric"), ("cross", True, "symmetric")],
)  # fmt: skip
def test_a_step_has_equations_6_to_12_and_their_gradients(
    base: Path, own_cache: Path, name: str, whole_batch: bool, towers: str
) -> None:
    """Against float64, from the networks' own states, over each text's own candidates or those of the batch.

    Without a name the index's teacher trains, with weights that tell texts apart.
    """
    rows = np.array(sorted([*sorted(sources_of(base).positives)[:4], 100, 140]))
    described = joint(name, towers=towers, max_document_length=24)
    if whole_batch:
        described["losses"][0] = LABELS | {"own_candidates": False}
    if name and whole_batch != (name == "late"):
        described["joint_candidates"] = "batch" if whole_batch else "own"
    student, objective, sources = build(base, described, rows)
    texts, corpus = sources.texts["text"].to_pylist(), sources.document_texts()
    tokens = student.tokenize(texts, 32)
    [trained] = objective.teachers.modules
    generator = torch.Generator().manual_seed(1)
    for weight in trained.parameters():
        if not name and weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2, generator=generator)
    tensors = objective.forward(student, tokens, rows, rows, 5)
    terms = objective.terms(student, tensors, rows, rows, 5)
    torch.stack([*terms.values()]).sum().backward()

    assert objective.candidates is not None
    batch = objective.candidates.of(rows, 5)
    [(loss, layers)] = objective.providers.items()
    pairs = layers.pairs  # type: ignore[attr-defined]
    tensors["states"] = tensors[f"{loss}.queries.states"]
    listed = [{*sources.nearest(2)[row].tolist(), *sources.positives.get(int(row), ())} for row in rows]
    is_own = np.array([[document in documents for document in batch.documents.tolist()] for documents in listed])
    assert (is_own.sum(axis=1) < len(batch.documents)).all() and (is_own >= batch.label).all()
    is_own |= whole_batch
    load, score = {"": (lambda _: trained, index_scores), "late": (load_late_interaction, late_scores),
                   "cross": (load_ranker, cross_scores)}[name]  # fmt: skip
    network: Any = copy.deepcopy(load(base / f"models/teach/{name}/tower")).double().eval()
    network.zero_grad()
    nothing = torch.zeros(3 if name == "cross" else 5, dtype=torch.float64)
    pair_scores = [
        score(network, texts[row], corpus[document]) if is_own[text, column] else nothing
        for text, row in enumerate(rows.tolist())
        for column, document in enumerate(batch.documents.tolist())
    ]
    teacher_scores = torch.stack(pair_scores).unflatten(0, is_own.shape)
    if towers == "symmetric":
        against = tensors["documents"], tensors[f"{loss}.documents.states"]
    else:
        document_states = layers.documents.of(batch.documents, np.array(pairs.student))
        against = torch.from_numpy(np.array(sources.documents[batch.documents])), document_states
    expected = reference(teacher_scores, tensors, against, batch, is_own, pairs)
    for value, by_hand in zip(terms.values(), expected.values(), strict=True):
        assert value.item() == pytest.approx(by_hand.item(), rel=1e-3) and value.item() > 1e-3
    torch.stack([*expected.values()]).sum().backward()
    slopes = {key: weight.grad for key, weight in trained.named_parameters() if weight.grad is not None}
    wanted_slopes = {key: weight.grad for key, weight in network.named_parameters() if weight.grad is not None}
    assert slopes.keys() == wanted_slopes.keys() and len(slopes) > 20
    for key, slope in slopes.items():
        atol = 1e-4 * max(1.0, wanted_slopes[key].abs().max().item())  # float32 in here
        np.testing.assert_allclose(slope, wanted_slopes[key], rtol=1e-3, atol=atol, err_msg=key)


@pytest.mark.parametrize("kind", ["score_softmax", "score_kl", "score_squared"])
def test_what_only_the_student_learns_leaves_a_teacher_that_trains_where_it_is(
    base: Path, own_cache: Path, kind: str
) -> None:
    rows = np.arange(6)
    losses = [LABELS, {"kind": "teacher_label_softmax", "teacher": "late"}, {"kind": kind, "teacher": "late"}]
    student: Any
    student, objective, sources = build(base, joint("late", losses=losses, max_document_length=24), rows)
    tokens = student.tokenize(sources.texts["text"].to_pylist(), 32)
    terms = objective.terms(student, objective.forward(student, tokens, rows, rows, 0), rows, rows, 0)
    [name] = [term for term in terms if term.startswith(kind)]
    terms[name].backward()
    [trained] = objective.teachers.modules
    assert all(weight.grad is None or not weight.grad.any() for weight in trained.parameters())
    assert any(weight.grad is not None and weight.grad.any() for weight in student.tower.parameters())


def trained(root: Path, name: str, **changes: Any) -> Path:
    return run_distill(root, "it", params_of(joint(name, **changes)))


def digests(output: Path) -> dict[str, str]:
    return {path.relative_to(output).as_posix(): sha256_file(path) for path in output.rglob("*.safetensors")}


@pytest.mark.parametrize(("name", "changes"), [("late", OWN), ("cross", {})])
def test_both_models_train_and_the_teacher_is_left_as_teach_leaves_one(
    root: Path, name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "LOG_EVERY", 3)  # an epoch
    run = Recorder()
    output = run_distill(root, "it", params_of(joint(name, epochs=6.0, **changes)), run)
    for loss in read_json(output / "report.json")["losses"]:
        values = run.of(f"train_loss.{loss}")
        assert np.isfinite(values).all()
    assert run.of("train_loss")[-1] < run.of("train_loss")[0]
    assert digests(root / f"models/teach/{name}") != digests(output / "teacher")
    reranked, candidates = [], [np.array([3, 9, 20])]
    corpus = sources_of(root).document_texts()
    for teach in (root / f"models/teach/{name}", output / "teacher"):
        opened = open_reranker(teach, root / f"scratch/{teach.name}", "fp32", 8)
        reranked.append(opened.scores(["how to sum"], candidates, lambda rows: [corpus[row] for row in rows])[0])
    assert (reranked[0] != reranked[1]).any() and np.isfinite(reranked[1]).all()


class Killed(BaseException):
    """Ends a training as a kill would, but for the process."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"), [("late", {"losses": [LABELS, LAYERS | {"teacher": "late", "selection": "weighted"}]}),
                          ("cross", OWN)]
)  # fmt: skip
def test_a_killed_training_goes_on_to_the_same_weights_of_both(
    root: Path, name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    changes = changes | {"epochs": 3.0}
    calm = digests(trained(root, name, **changes))
    assert any(path.startswith("teacher/tower/") for path in calm)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    save, saved = Checkpoints.save, 0

    def save_and_be_killed(self: Checkpoints, *arguments: Any) -> None:
        nonlocal saved
        save(self, *arguments)
        saved += 1
        if saved in (2, 5):
            raise Killed

    monkeypatch.setattr(Checkpoints, "save", save_and_be_killed)
    shutil.rmtree(root / "models/distill")
    for _ in range(2):
        with pytest.raises(Killed):
            trained(root, name, **changes)
        assert list(own_cache.glob("distill/*/state.pt"))
    assert digests(trained(root, name, **changes)) == calm
    assert saved > 6 and not list(own_cache.glob("distill/*/state.pt"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["late", "cross"])
def test_small_passes_give_the_same_models(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = weights_of(trained(root, name, learning_rate=1e-4))
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "5")
    assert_close_weights(weights_of(trained(root, name, learning_rate=1e-4)), expected, 2e-4)
