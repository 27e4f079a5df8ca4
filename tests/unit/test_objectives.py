"""Objectives against their formulas written out in float64, and the split of a batch over pieces."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from steps.distill.candidates import Candidates
from steps.distill.losses.embedding import LOSSES, QueryDistillation
from steps.distill.objectives import Embeddings, Objective, Rankings
from steps.distill.params import Ranking
from steps.distill.tokens import Tokens

RNG = np.random.default_rng(5)
VECTORS, DOCUMENTS, QUERIES, OWN_DOCUMENTS = (
    RNG.normal(size=(count, 6)).astype(np.float32) for count in (12, 15, 12, 15)
)
POSITIVES = {1: np.array([0, 4, 8]), 4: np.array([4]), 6: np.array([2, 14]), 9: np.array([0])}
ROWS = np.array([0, 1, 4, 5, 6, 10])
TOKENS, DOCUMENT_TOKENS = (Tokens(np.arange(n), np.arange(n + 1), np.ones(n, dtype=np.int64)) for n in (12, 15))
EVERY = ["label_softmax", "label_binary", "score_softmax", "score_binary", "score_squared", "query_matching"]
TERMS = [*((name, False) for name in EVERY), *((name, True) for name in [*EVERY, "document_matching"])]


@dataclass
class Table:
    """A student that has one embedding a text and one a document."""

    queries: torch.Tensor = field(default_factory=lambda: torch.tensor(QUERIES, requires_grad=True))
    documents: torch.Tensor = field(default_factory=lambda: torch.tensor(OWN_DOCUMENTS, requires_grad=True))

    def embed(self, tokens: Tokens, rows: np.ndarray) -> torch.Tensor:
        return (self.documents if len(tokens) == len(DOCUMENTS) else self.queries)[torch.from_numpy(rows)]


def rankings(terms: dict[Any, float], *, symmetric: bool, cosine: bool = True, temperature: float = 0.3) -> Rankings:
    searched = DOCUMENTS / np.linalg.norm(DOCUMENTS, axis=1, keepdims=True) if cosine else DOCUMENTS
    nearest = np.argsort(-(VECTORS @ searched.T), axis=1)[:, :3]
    ranking = Ranking(terms=terms, temperature=temperature)
    tokens = DOCUMENT_TOKENS if symmetric else None
    return Rankings(ranking, VECTORS, DOCUMENTS, Candidates(POSITIVES, nearest, 1), tokens, cosine=cosine)


def similarity(a: np.ndarray, b: np.ndarray, *, cosine: bool) -> float:
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b)) if cosine else dot


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return math.sqrt(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)))


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def by_hand(
    name: str, rows: np.ndarray, label: list[int | None], candidates: list[int], own: np.ndarray, cosine: bool, t: float
) -> float:
    """A term of a batch; `label` is each text's drawn positive, `own` the embeddings that the student compares with."""
    if name == "document_matching":
        return sum(distance(own[d], DOCUMENTS[d]) for d in candidates) / len(candidates)
    total, texts = 0.0, 0
    t = t if name.endswith("softmax") else 1.0
    for row, right in zip(rows.tolist(), label, strict=True):
        s = {d: similarity(QUERIES[row], own[d], cosine=cosine) / t for d in candidates}
        goal = {d: similarity(VECTORS[row], DOCUMENTS[d], cosine=cosine) / t for d in candidates}
        if name.startswith("label"):
            if right is None:
                continue
            kept = [d for d in candidates if d == right or d not in POSITIVES[row].tolist()]
            if name == "label_softmax":
                total -= s[right] - math.log(sum(math.exp(s[d]) for d in kept))
            else:
                total -= math.log(sigmoid(s[right])) + sum(math.log(1 - sigmoid(s[d])) for d in kept if d != right)
        elif name == "score_softmax":
            below, above = sum(math.exp(x) for x in s.values()), sum(math.exp(x) for x in goal.values())
            total -= sum(math.exp(goal[d]) / above * math.log(math.exp(s[d]) / below) for d in candidates)
        elif name == "score_binary":
            for d in candidates:
                wanted = sigmoid(goal[d])
                total -= wanted * math.log(sigmoid(s[d])) + (1 - wanted) * math.log(1 - sigmoid(s[d]))
        elif name == "score_squared":
            total += sum((goal[d] - s[d]) ** 2 for d in candidates)
        else:
            total += distance(QUERIES[row], VECTORS[row])
        texts += 1
    return total / texts


@pytest.mark.parametrize(("cosine", "temperature"), [(True, 0.3), (False, 2.0), (True, 1.0)])
@pytest.mark.parametrize(("name", "symmetric"), TERMS)
def test_each_term_is_its_formula(name: str, symmetric: bool, cosine: bool, temperature: float) -> None:
    objective = rankings({name: 2.5}, symmetric=symmetric, cosine=cosine, temperature=temperature)
    assert objective.names == [name]
    for step in (1, 2):
        batch = objective.candidates.of(ROWS, step)
        label = [int(batch.documents[row].item()) if row.any() else None for row in batch.label]
        assert {row for row, own in zip(ROWS.tolist(), label, strict=True) if own is not None} == {1, 4, 6}
        embedded = objective.embed(Table(), TOKENS, ROWS, ROWS, step)
        own = OWN_DOCUMENTS if symmetric else DOCUMENTS
        expected = by_hand(name, ROWS, label, batch.documents.tolist(), own, cosine, temperature)
        found = objective.terms(embedded, ROWS, ROWS, step)[name].item()
        assert found == pytest.approx(2.5 * expected, rel=2e-5)


def test_terms_of_weight_zero_are_left_out() -> None:
    objective = rankings({"score_squared": 0.0, "query_matching": 1.0}, symmetric=False)
    embedded = objective.embed(Table(), TOKENS, ROWS, ROWS, 1)
    assert list(objective.names) == list(objective.terms(embedded, ROWS, ROWS, 1)) == ["query_matching"]


def in_pieces(objective: Objective, rows: np.ndarray, pieces: list[np.ndarray]) -> tuple[dict[str, float], list[Any]]:
    """Sums over the pieces of each term's share and of the gradients."""
    student, sums = Table(), dict.fromkeys(objective.names, 0.0)
    for piece in pieces:
        shares = objective.terms(objective.embed(student, TOKENS, piece, rows, 3), piece, rows, 3)
        for name, share in shares.items():
            sums[name] += float(share.detach())
        torch.stack(list(shares.values())).sum().backward()
    empty = torch.zeros(1)
    return sums, [(empty if each.grad is None else each.grad).numpy() for each in (student.queries, student.documents)]


OBJECTIVES: dict[str, Objective] = {
    "asymmetric": rankings(dict.fromkeys(EVERY, 0.5), symmetric=False),
    "symmetric": rankings(dict.fromkeys([*EVERY, "document_matching"], 0.5), symmetric=True),
    "widths": Embeddings("cosine", LOSSES["cosine"](), VECTORS, [2, 4]),
    "qkd": Embeddings("qkd", QueryDistillation(2.0), VECTORS, []),
}
TWICE = np.array([0, 1, 1, 4, 5, 6, 6, 7, 10])  # a part of weight 2 gives a batch some of its texts twice


@pytest.mark.parametrize("rows", [ROWS, TWICE], ids=["once", "twice"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_shares_of_any_partition_add_up_to_the_batch(objective: Objective, rows: np.ndarray) -> None:
    whole, gradients = in_pieces(objective, rows, [rows])
    draw = np.random.default_rng(0)
    partitions = [list(rows[:, None]), np.array_split(rows, 2), np.array_split(draw.permutation(rows), 3)]
    for pieces in partitions:
        shares, slopes = in_pieces(objective, rows, [np.sort(piece) for piece in pieces])
        assert shares == pytest.approx(whole, rel=1e-5)
        for one, other in zip(slopes, gradients, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert all(value != 0 for value in whole.values())


def cut_by_hand(vector: np.ndarray, width: int) -> np.ndarray:
    kept = [float(value) for value in vector[:width]]
    return np.array(kept) / math.sqrt(sum(value**2 for value in kept))


def pair_by_hand(name: str, student: np.ndarray, teacher: np.ndarray) -> float:
    match name:
        case "squared_error":
            return distance(student, teacher) ** 2
        case "l2":
            return distance(student, teacher)
        case "cosine":
            return 1 - similarity(student, teacher, cosine=True)
    return distance(student, teacher) ** 2 - 0.5 * similarity(student, teacher, cosine=True)


@pytest.mark.parametrize("name", ["squared_error", "l2", "cosine", "qkd"])
@pytest.mark.parametrize("widths", [[], [1], [2, 5]])
def test_embeddings_are_compared_whole_and_cut_to_each_width(name: str, widths: list[int]) -> None:
    loss = QueryDistillation(0.5) if name == "qkd" else LOSSES[name]()
    objective = Embeddings(name, loss, VECTORS, widths)
    found = objective.terms(objective.embed(Table(), TOKENS, ROWS, ROWS, 1), ROWS, ROWS, 1)
    total = 0.0
    for row in ROWS.tolist():
        total += pair_by_hand(name, QUERIES[row], VECTORS[row])
        for width in widths:
            norm = math.sqrt(sum(float(value) ** 2 for value in VECTORS[row]))
            cuts = (norm * cut_by_hand(vectors[row], width) for vectors in (QUERIES, VECTORS))
            total += pair_by_hand(name, *cuts)
    expected = total / len(ROWS) / (1 + len(widths))
    assert list(found) == [name]
    assert found[name].item() == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("documents", [None, DOCUMENT_TOKENS], ids=["asymmetric", "symmetric"])
def test_a_batch_without_labels_or_candidates_moves_nothing_but_its_matching(documents: Tokens | None) -> None:
    terms: dict[Any, float] = dict.fromkeys(EVERY if documents is None else [*EVERY, "document_matching"], 1.0)
    nothing = Candidates({}, np.zeros((12, 0), dtype=np.int64), 1)
    objective = Rankings(Ranking(terms=terms), VECTORS, DOCUMENTS, nothing, documents, cosine=True)
    embedded = objective.embed(Table(), TOKENS, ROWS, ROWS, 1)
    found = {name: float(term.detach()) for name, term in objective.terms(embedded, ROWS, ROWS, 1).items()}
    assert found.pop("query_matching") > 0
    assert set(found.values()) == {0.0}
