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
    known = distill_params().model_dump()["student"]
    return distill_params(students=["static"], student=known | {"it": student}, repeats={"train_queries": 1.0})


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


def made(root: Path, student: dict[str, Any], rows: np.ndarray) -> tuple[Student, Objective, Sources]:
    """A student that trains on these rows, and its objective."""
    sources, params, tower = sources_of(root), params_of(student), root / "models/teach/dense/tower"
    chosen = params.described("it")
    found = untrained(chosen, tower, sources, ["a text"], params)
    [(objective, *_)] = Trainings(chosen, found, tower, True, sources, rows, params)
    return found, objective, sources


def index_scores(tower: Any, text: str, document: str) -> Tensor:
    """Its cosine, and the product of each layer's mean states, in float64: `(1 + layers,)`."""
    sides = []
    for each, longest in ((text, 32), (document, 24)):
        tokens = tower.tokenizer(each, truncation=True, max_length=longest, return_tensors="pt")
        layers = tower[0].auto_model(**tokens, output_hidden_states=True).hidden_states[1:]
        sides.append(torch.stack([layer[0].mean(dim=0) for layer in layers]))
    asked, held = sides
    return torch.cat([torch.cosine_similarity(asked[-1:], held[-1:]), (asked * held).sum(dim=1)])


def late_scores(model: Any, text: str, document: str) -> Tensor:
    """MaxSim of its vectors, and of each layer's states, in float64: `(1 + layers,)`."""
    sides = []
    for each, task, longest in ((text, "query", None), (document, "document", 24)):
        features = model.preprocess([each], prompt=None, task=task, max_length=longest)
        given = {name: features[name] for name in ("input_ids", "attention_mask")}
        states = [state[0] for state in model[0].auto_model(**given, output_hidden_states=True).hidden_states[1:]]
        vectors = states[-1] @ model[1].linear.weight.T
        sides.append([vectors / vectors.norm(dim=1, keepdim=True), *states])
    return torch.stack([(asked @ held.T).max(dim=1).values.sum() for asked, held in zip(*sides, strict=True)])


def cross_scores(ranker: Any, text: str, document: str) -> Tensor:
    """Its logit, and its head on each layer's first token, in float64: `(1 + layers,)`."""
    network = ranker.model
    features = ranker.preprocess([(text, document)])
    given = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    states = network.bert(**given, output_hidden_states=True).hidden_states[1:]
    logits = [network.classifier(torch.tanh(network.bert.pooler.dense(state[0, 0])))[0] for state in states]
    return torch.stack([logits[-1], *logits])


def reference(
    given: Tensor, made: dict[str, Tensor], documents: tuple[Tensor, Tensor], drawn: CandidateBatch, own: Any, at: Any
) -> dict[str, Tensor]:
    """LEAD's four losses, Eq. 6 to 11, text by text in float64; `given` `(n, m, 1 + layers)` are the teacher's scores.

    `documents` are vectors and states of layers that the student is scored against, `own` each text's candidates.
    """
    raw, states = made["queries"].detach().double(), made["states"].detach().double()
    vectors, held = (each.detach().double() for each in documents)
    cosines = (raw / raw.norm(dim=1, keepdim=True)) @ (vectors / vectors.norm(dim=1, keepdim=True)).T

    def log_shares(scores: Tensor) -> Tensor:
        return scores - torch.logsumexp(scores, dim=0)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (log_shares(p).exp() * (log_shares(p) - log_shares(q))).sum()

    zero = torch.zeros((), dtype=torch.float64)
    found = dict.fromkeys(("label", "teacher", "mutual", "layers"), zero)
    labelled = drawn.label.any(axis=1).sum()
    for text in range(len(own)):
        listed = np.flatnonzero(own[text])
        counted = np.flatnonzero(own[text] & drawn.counts[text])
        label = np.flatnonzero(drawn.label[text])
        s, t = cosines[text] / 0.2, given[text, :, 0] / 1.5
        found["mutual"] = found["mutual"] + (kl(t[listed], s[listed]) + kl(s[listed], t[listed])) / len(own)
        by_pair, by_label = [], []
        for number, theirs in enumerate(at.teacher):
            layer = given[text, :, 1 + theirs]
            student = held[:, number] @ states[text, number]
            by_pair.append(kl(layer[listed] / 0.7, student[listed] / 0.7))
            right = log_shares(layer[counted])[counted.tolist().index(label[0])] if len(label) else zero
            by_label.append(-right.detach())
        weights = torch.softmax(-torch.stack(by_label) / 10, dim=0)
        found["layers"] = found["layers"] + (weights * torch.stack(by_pair)).sum() / len(own)
        if len(label):
            place = counted.tolist().index(label[0])
            found["label"] = found["label"] - log_shares(s[counted])[place] / labelled
            found["teacher"] = found["teacher"] - log_shares(t[counted])[place] / labelled
    return found


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
    student, objective, sources = made(base, described, rows)
    texts, corpus = sources.texts["text"].to_pylist(), sources.document_texts()
    tokens = student.tokenize(texts, 32)
    [trained] = objective.teachers.modules
    generator = torch.Generator().manual_seed(1)
    for weight in trained.parameters():
        if not name and weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.2, generator=generator)
    found = objective.forward(student, tokens, rows, rows, 5)
    terms = objective.terms(student, found, rows, rows, 5)
    torch.stack([*terms.values()]).sum().backward()

    assert objective.candidates is not None
    drawn = objective.candidates.of(rows, 5)
    [(loss, layers)] = objective.providers.items()
    pairs = layers.pairs  # type: ignore[attr-defined]
    found["states"] = found[f"{loss}.queries.states"]
    listed = [{*sources.nearest(2)[row].tolist(), *sources.positives.get(int(row), ())} for row in rows]
    own = np.array([[document in each for document in drawn.documents.tolist()] for each in listed])
    assert (own.sum(axis=1) < len(drawn.documents)).all() and (own >= drawn.label).all()
    own |= whole_batch
    load, score = {"": (lambda _: trained, index_scores), "late": (load_late_interaction, late_scores),
                   "cross": (load_ranker, cross_scores)}[name]  # fmt: skip
    network: Any = copy.deepcopy(load(base / f"models/teach/{name}/tower")).double().eval()
    network.zero_grad()
    nothing = torch.zeros(3 if name == "cross" else 5, dtype=torch.float64)
    each = [
        score(network, texts[row], corpus[document]) if own[text, place] else nothing
        for text, row in enumerate(rows.tolist())
        for place, document in enumerate(drawn.documents.tolist())
    ]
    given = torch.stack(each).unflatten(0, own.shape)
    if towers == "symmetric":
        against = found["documents"], found[f"{loss}.documents.states"]
    else:
        held = layers.documents.of(drawn.documents, np.array(pairs.student))
        against = torch.from_numpy(np.array(sources.documents[drawn.documents])), held
    expected = reference(given, found, against, drawn, own, pairs)
    for value, wanted in zip(terms.values(), expected.values(), strict=True):
        assert value.item() == pytest.approx(wanted.item(), rel=1e-3) and value.item() > 1e-3
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
    student, objective, sources = made(base, joint("late", losses=losses, max_document_length=24), rows)
    tokens = student.tokenize(sources.texts["text"].to_pylist(), 32)
    terms = objective.terms(student, objective.forward(student, tokens, rows, rows, 0), rows, rows, 0)
    [name] = [each for each in terms if each.startswith(kind)]
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
    told, candidates = [], [np.array([3, 9, 20])]
    corpus = sources_of(root).document_texts()
    for teach in (root / f"models/teach/{name}", output / "teacher"):
        opened = open_reranker(teach, root / f"scratch/{teach.name}", "fp32", 8)
        told.append(opened.scores(["how to sum"], candidates, lambda rows: [corpus[row] for row in rows])[0])
    assert (told[0] != told[1]).any() and np.isfinite(told[1]).all()


class Killed(BaseException):
    """Ends a training as a kill would, but for the process."""


@pytest.mark.parametrize(
    ("name", "changes"), [("late", {"losses": [LABELS, LAYERS | {"teacher": "late", "selection": "weighted"}]}),
                          ("cross", OWN)]
)  # fmt: skip
def test_a_killed_training_goes_on_to_the_same_weights_of_both(
    root: Path, name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    changes = changes | {"epochs": 3.0}
    calm = digests(trained(root, name, **changes))
    assert any(each.startswith("teacher/tower/") for each in calm)
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


@pytest.mark.parametrize("name", ["late", "cross"])
def test_small_passes_give_the_same_models(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights_of(trained(root, name, learning_rate=1e-4))
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", "5")
    assert_close_weights(weights_of(trained(root, name, learning_rate=1e-4)), whole, 2e-4)
