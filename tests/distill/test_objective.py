"""Objectives against their formulas written out in float64, and the split of a batch over pieces."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from steps.distill.candidates import Candidates
from steps.distill.losses.base import Loss, Units
from steps.distill.losses.embedding import DocumentEmbedding, Embedding, Lengths, QueryDistillation
from steps.distill.losses.label import LabelBinary, LabelSoftmax
from steps.distill.losses.score import ScoreSoftmax, ScoreSquared
from steps.distill.objective import Objective
from steps.distill.score_tables import ScoreTable
from steps.distill.targets import StoredTeachers, units_of
from steps.distill.tokens import Tokens

RNG = np.random.default_rng(5)
VECTORS, DOCUMENTS, QUERIES, OWN_DOCUMENTS = (
    RNG.normal(size=(count, 6)).astype(np.float32) for count in (12, 15, 12, 15)
)
POSITIVES = {1: np.array([0, 4, 8]), 4: np.array([4]), 6: np.array([2, 14]), 9: np.array([0])}
ROWS = np.array([0, 1, 4, 5, 6, 10])
TOKENS, DOCUMENT_TOKENS = (Tokens(np.arange(n), np.arange(n + 1), np.ones(n, dtype=np.int64)) for n in (12, 15))
EVERY = ["label_softmax", "label_binary", "score_softmax", "score_squared", "embedding"]
TERMS = [*((name, False) for name in EVERY), *((name, True) for name in [*EVERY, "document_embedding"])]


@dataclass
class Table:
    """A student that has one embedding a text and one a document."""

    queries: torch.Tensor = field(default_factory=lambda: torch.tensor(QUERIES, requires_grad=True))
    documents: torch.Tensor = field(default_factory=lambda: torch.tensor(OWN_DOCUMENTS, requires_grad=True))

    def embed(self, tokens: Tokens, rows: np.ndarray) -> torch.Tensor:
        return (self.documents if len(tokens) == len(DOCUMENTS) else self.queries)[torch.from_numpy(rows)]

    def normalised(self, raw: torch.Tensor) -> torch.Tensor:
        return raw


def loss_of(kind: Any, weight: float = 1.0, temperature: float = 0.3, **more: Any) -> Loss:
    """A loss by its kind; embeddings by l2, a temperature where the paper has one."""
    match kind:
        case "label_softmax":
            return LabelSoftmax(kind=kind, weight=weight, temperature=temperature, **more)
        case "label_binary":
            return LabelBinary(kind=kind, weight=weight, **more)
        case "score_softmax":
            return ScoreSoftmax(kind=kind, weight=weight, temperature=temperature, **more)
        case "score_squared":
            return ScoreSquared(kind=kind, weight=weight, **more)
        case "document_embedding":
            return DocumentEmbedding(kind=kind, weight=weight, **more)
    return Embedding(kind="embedding", weight=weight, distance="l2", **more)


def objective_of(losses: list[Loss], *, symmetric: bool = False, cosine: bool = True, nearest: int = 3) -> Objective:
    scores = VECTORS @ (DOCUMENTS / np.linalg.norm(DOCUMENTS, axis=1, keepdims=True) if cosine else DOCUMENTS).T
    near = np.argsort(-scores, axis=1)[:, :nearest]
    teachers = StoredTeachers(VECTORS, DOCUMENTS, cosine)
    candidates = Candidates(POSITIVES if nearest else {}, near, 1)
    providers = {"qkd": Lengths(np.linalg.norm(VECTORS, axis=1), 1.0)}
    return Objective(losses, teachers, candidates, DOCUMENT_TOKENS if symmetric else None, providers=providers)


def terms(
    objective: Objective, student: Any, piece: np.ndarray, rows: np.ndarray, step: int
) -> dict[str, torch.Tensor]:
    tensors = objective.forward(student, TOKENS, piece, rows, step)
    return objective.terms(student, tensors, piece, rows, step)


def similarity(a: np.ndarray, b: np.ndarray, *, cosine: bool) -> float:
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b)) if cosine else dot


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return math.sqrt(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)))


def by_hand(
    name: str,
    rows: np.ndarray,
    label: list[int | None],
    candidates: list[int],
    docs: np.ndarray,
    cosine: bool,
    t: float,
) -> float:
    """A term of a batch; `label` is each text's drawn positive, `own` the embeddings that the student compares with."""
    if name == "document_embedding":
        return sum(distance(docs[d], DOCUMENTS[d]) for d in candidates) / len(candidates)
    total, texts = 0.0, 0
    t = t if name.endswith("softmax") else 1.0
    for row, right in zip(rows.tolist(), label, strict=True):
        s = {d: similarity(QUERIES[row], docs[d], cosine=cosine) / t for d in candidates}
        goal = {d: similarity(VECTORS[row], DOCUMENTS[d], cosine=cosine) / t for d in candidates}
        if name.startswith("label"):
            if right is None:
                continue
            counted = [d for d in candidates if d == right or d not in POSITIVES[row].tolist()]
            if name == "label_softmax":
                total -= s[right] - math.log(sum(math.exp(s[d]) for d in counted))
            else:
                total += sum(math.log(1 + math.exp(-s[d] if d == right else s[d])) for d in counted)
        elif name == "score_softmax":
            below, above = sum(math.exp(x) for x in s.values()), sum(math.exp(x) for x in goal.values())
            total -= sum(math.exp(goal[d]) / above * math.log(math.exp(s[d]) / below) for d in candidates)
        elif name == "score_squared":
            total += sum((goal[d] - s[d]) ** 2 for d in candidates)
        else:
            total += distance(QUERIES[row], VECTORS[row])
        texts += 1
    return total / texts


@pytest.mark.parametrize(("cosine", "temperature"), [(True, 0.3), (False, 2.0)])
@pytest.mark.parametrize(("name", "symmetric"), TERMS)
def test_each_term_is_its_formula(name: str, symmetric: bool, cosine: bool, temperature: float) -> None:
    objective = objective_of([loss_of(name, 2.5, temperature)], symmetric=symmetric, cosine=cosine)
    assert objective.names == [name] and objective.candidates is not None
    for step in (1, 2):
        batch = objective.candidates.of(ROWS, step)
        label = [int(batch.documents[row].item()) if row.any() else None for row in batch.label]
        assert {row for row, column in zip(ROWS.tolist(), label, strict=True) if column is not None} == {1, 4, 6}
        documents = OWN_DOCUMENTS if symmetric else DOCUMENTS
        expected = by_hand(name, ROWS, label, batch.documents.tolist(), documents, cosine, temperature)
        value = terms(objective, Table(), ROWS, ROWS, step)[name].item()
        assert value == pytest.approx(2.5 * expected, rel=2e-5)


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize(("name", "symmetric"), [*TERMS, ("qkd", False)])
def test_losses_do_not_depend_on_the_lengths_of_the_teachers_vectors(name: str, symmetric: bool, cosine: bool) -> None:
    def values(queries: float, documents: float) -> float:
        vectors, scaled = VECTORS * np.float32(queries), DOCUMENTS * np.float32(documents)
        teachers, units = StoredTeachers(vectors, scaled, cosine), units_of(vectors, scaled)
        near = np.argsort(-(VECTORS @ DOCUMENTS.T), axis=1)[:, :3]
        loss = QueryDistillation(kind="qkd") if name == "qkd" else loss_of(name)
        objective = Objective(
            [loss], teachers, Candidates(POSITIVES, near, 1), DOCUMENT_TOKENS if symmetric else None,
            units, {"qkd": Lengths(np.linalg.norm(vectors, axis=1), units.queries)},
        )  # fmt: skip
        student = Table(torch.tensor(QUERIES * queries), torch.tensor(OWN_DOCUMENTS * documents))
        return terms(objective, student, ROWS, ROWS, 1)[name].item()

    assert values(7.0, 3.0) == pytest.approx(values(1.0, 1.0), rel=1e-4)


def test_units_are_mean_lengths_and_one_where_the_teacher_normalises() -> None:
    units = units_of(VECTORS, DOCUMENTS)
    assert units.queries == pytest.approx(sum(math.sqrt(sum(float(x) ** 2 for x in row)) for row in VECTORS) / 12)
    assert units.documents == pytest.approx(sum(math.sqrt(sum(float(x) ** 2 for x in row)) for row in DOCUMENTS) / 15)
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    assert units_of(unit.astype(np.float16), np.zeros((0, 6))) == Units(1.0, 1.0)


def test_another_teachers_scores_count_for_a_texts_own_documents_alone() -> None:
    nearest = np.array([[(3 * row + at) % 15 for at in range(2)] for row in range(12)])
    stored = RNG.normal(size=(12, 2)).astype(np.float32)
    teachers = StoredTeachers(
        VECTORS,
        DOCUMENTS,
        cosine=True,
        scores={"cross": ScoreTable(nearest, np.arange(24).reshape(12, 2), stored.ravel())},
    )
    loss = ScoreSoftmax(kind="score_softmax", teacher="cross", temperature=0.5)
    values = terms(Objective([loss], teachers, Candidates({}, nearest, 1)), Table(), ROWS, ROWS, 1)
    total = 0.0
    for row in ROWS.tolist():
        s = [similarity(QUERIES[row], DOCUMENTS[d], cosine=True) / 0.5 for d in nearest[row]]
        goal = [float(score) / 0.5 for score in stored[row]]
        below, above = sum(map(math.exp, s)), sum(map(math.exp, goal))
        total -= sum(math.exp(b) / above * math.log(math.exp(a) / below) for a, b in zip(s, goal, strict=True))
    assert values["score_softmax@cross"].item() == pytest.approx(total / len(ROWS), rel=1e-5)


def in_pieces(objective: Objective, rows: np.ndarray, pieces: list[np.ndarray]) -> tuple[dict[str, float], list[Any]]:
    """Sums over the pieces of each term's share and of the gradients."""
    student, sums = Table(), dict.fromkeys(objective.names, 0.0)
    for piece in pieces:
        shares = terms(objective, student, piece, rows, 3)
        for name, share in shares.items():
            sums[name] += float(share.detach())
        torch.stack(list(shares.values())).sum().backward()
    empty = torch.zeros(1)
    return sums, [(empty if leaf.grad is None else leaf.grad).numpy() for leaf in (student.queries, student.documents)]


OBJECTIVES: dict[str, Objective] = {
    "asymmetric": objective_of([loss_of(name, 0.5) for name in EVERY]),
    "symmetric": objective_of([loss_of(name, 0.5) for name in [*EVERY, "document_embedding"]], symmetric=True),
    "dims": objective_of([loss_of(name, 0.5, dims=[2, 4]) for name in EVERY]),
    "qkd": objective_of([QueryDistillation(kind="qkd")]),
}
TWICE = np.array([0, 1, 1, 4, 5, 6, 6, 7, 10])  # a part of weight 2 gives a batch some of its texts twice


@pytest.mark.parametrize("rows", [ROWS, TWICE], ids=["once", "twice"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_shares_of_any_partition_add_up_to_the_batch(objective: Objective, rows: np.ndarray) -> None:
    expected, gradients = in_pieces(objective, rows, [rows])
    draw = np.random.default_rng(0)
    partitions = [list(rows[:, None]), np.array_split(rows, 2), np.array_split(draw.permutation(rows), 3)]
    for pieces in partitions:
        shares, slopes = in_pieces(objective, rows, [np.sort(piece) for piece in pieces])
        assert shares == pytest.approx(expected, rel=1e-5)
        for slope, gradient in zip(slopes, gradients, strict=True):
            np.testing.assert_allclose(slope, gradient, atol=1e-5)
    assert all(value != 0 for value in expected.values())


def cut_by_hand(vector: np.ndarray, dim: int) -> np.ndarray:
    values = [float(value) for value in vector[:dim]]
    return np.array(values) / math.sqrt(sum(value**2 for value in values))


def pair_by_hand(name: str, student: np.ndarray, teacher: np.ndarray) -> float:
    match name:
        case "squared_error":
            return distance(student, teacher) ** 2
        case "l2":
            return distance(student, teacher)
        case "cosine":
            return 1 - similarity(student, teacher, cosine=True)
    return distance(student, teacher) ** 2 - similarity(student, teacher, cosine=True)


@pytest.mark.parametrize("name", ["squared_error", "l2", "cosine", "qkd"])
@pytest.mark.parametrize("dims", [[], [1], [2, 5]])
def test_embeddings_are_compared_whole_and_cut_to_each_dim(name: Any, dims: list[int]) -> None:
    loss: Loss = QueryDistillation(kind="qkd", dims=dims)
    if name != "qkd":
        loss = Embedding(kind="embedding", distance=name, dims=dims)
    values = terms(objective_of([loss]), Table(), ROWS, ROWS, 1)
    total = 0.0
    for row in ROWS.tolist():
        total += pair_by_hand(name, QUERIES[row], VECTORS[row])
        for dim in dims:
            cuts = (
                math.sqrt(sum(float(value) ** 2 for value in vectors[row])) * cut_by_hand(vectors[row], dim)
                for vectors in (QUERIES, VECTORS)
            )
            total += pair_by_hand(name, *cuts)
    expected = total / len(ROWS) / (1 + len(dims))
    assert list(values) == [loss.kind]
    assert values[loss.kind].item() == pytest.approx(expected, rel=2e-5)


def test_scores_of_cut_vectors_are_compared_with_the_whole_teachers() -> None:
    value = terms(objective_of([loss_of("score_squared", dims=[3])]), Table(), ROWS, ROWS, 1)["score_squared"].item()
    documents = objective_of([]).candidates.of(ROWS, 1).documents.tolist()  # type: ignore[union-attr]
    total = 0.0
    for row in ROWS.tolist():
        for d in documents:
            goal = similarity(VECTORS[row], DOCUMENTS[d], cosine=True)
            for dim in (6, 3):
                total += (goal - similarity(QUERIES[row][:dim], DOCUMENTS[d][:dim], cosine=True)) ** 2
    assert value == pytest.approx(total / len(ROWS) / 2, rel=2e-5)


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_a_batch_without_labels_or_candidates_moves_nothing_but_its_embeddings(symmetric: bool) -> None:
    names = [*EVERY, "document_embedding"] if symmetric else EVERY
    objective = objective_of([loss_of(name) for name in names], symmetric=symmetric, nearest=0)
    values = {name: float(term.detach()) for name, term in terms(objective, Table(), ROWS, ROWS, 1).items()}
    assert values.pop("embedding") > 0
    assert set(values.values()) == {0.0}
