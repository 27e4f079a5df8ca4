"""A ranker keeps what it calls relevant away from the hard negatives of a round."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_fakes import write_encoder
from sentence_transformers import CrossEncoder
from teach_fakes import PARAMS, documents, write_tower, write_world

import steps.teach.dual_encoder as dual_encoder
import steps.teach.hard_negatives as hard_negatives
import steps.teach.hard_negatives as ranker_check
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from steps.retrieval.rankers import Pair, load_ranker
from steps.teach.contrastive_training import train_tower
from steps.teach.hard_negatives import checked_negatives, is_far
from steps.teach.kinds.base import RoundParams
from steps.teach.run import run as teach
from steps.teach.training_triplets import TextTriplet
from steps.tracking.runs import NullRun

TEXTS = [f"document {row}" for row in range(12)]
PLANTED, DOUBTFUL = 7, 3
TRIPLETS = [
    TextTriplet(f"query {query_number}", "the positive", "old", "judged", "p", "n", "d") for query_number in range(40)
]
FITS = [np.array([2, DOUBTFUL, PLANTED, 9]) for _ in TRIPLETS]


class FakeRanker:
    """Rates one planted document above the positive, and another almost as high; counts what it reads."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, model: Any, pairs: Sequence[Pair], **how: Any) -> np.ndarray:
        self.read += len(pairs)
        logits = {"the positive": 1.0, TEXTS[PLANTED]: 2.0, TEXTS[DOUBTFUL]: 0.0}
        return np.array([logits.get(document, -4.0) for _, document in pairs], dtype=np.float32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRanker:
    ranker = FakeRanker()
    monkeypatch.setattr(ranker_check, "load_ranker", lambda folder: folder)
    monkeypatch.setattr(ranker_check, "pair_scores", ranker)
    return ranker


def check(
    scratch: Path, margin: float = 0.5, number: int = 1, fits: Sequence[np.ndarray] = FITS, texts: Any = None
) -> list[int]:
    scratch.mkdir(parents=True, exist_ok=True)

    def document_texts(rows: np.ndarray) -> list[str]:
        assert (np.diff(rows) > 0).all(), "rows are asked for in ascending order, each once"
        return [TEXTS[row] for row in rows]

    arguments = (iter(fits), TRIPLETS, texts or document_texts, Path("ranker"), margin)
    return checked_negatives(*arguments, precision="fp32", seed=(3, number), scratch=scratch).tolist()


def test_a_document_that_the_ranker_prefers_to_the_positive_is_never_drawn(tmp_path: Path, fake: FakeRanker) -> None:
    negatives = check(tmp_path / "1")
    assert set(negatives) == {2, 9}  # sigmoid(0) = 0.5 is above half of sigmoid(1) = 0.73
    assert set(check(tmp_path / "2", margin=0.1)) == {2, DOUBTFUL, 9}
    assert negatives == check(tmp_path / "3") != check(tmp_path / "4", number=2)
    counts = [negatives.count(2), negatives.count(9)]
    assert min(counts) > 8, "those that pass are equally likely"


def test_a_triplet_without_a_document_that_passes_has_none(tmp_path: Path, fake: FakeRanker) -> None:
    fits = [np.array([PLANTED]), np.array([], dtype=np.int64), *FITS[2:]]
    negatives = check(tmp_path, fits=fits)
    assert negatives[:2] == [-1, -1] and -1 not in negatives[2:]


def test_a_killed_check_repeats_one_block_at_most(
    tmp_path: Path, fake: FakeRanker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker_check, "BLOCK", 15)
    expected = check(tmp_path / "whole")
    assert len(expected) == len(TRIPLETS)
    needed, calls = fake.read, []

    def killed(rows: np.ndarray) -> list[str]:
        calls.append(len(rows))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [TEXTS[row] for row in rows]

    with pytest.raises(KeyboardInterrupt):
        check(tmp_path / "killed", texts=killed)
    fake.read = 0
    assert check(tmp_path / "killed") == expected
    assert 0 < fake.read < needed / 2


def test_a_block_that_was_cut_is_told_and_checked_again(
    tmp_path: Path, fake: FakeRanker, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = check(tmp_path)
    [block] = tmp_path.glob("checked-*.npy")
    os.truncate(block, 130)
    assert check(tmp_path) == expected
    assert capsys.readouterr().err.count(f"teach: {block} cannot be read (") == 1


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.5, 0.99])
def test_far_is_a_share_of_the_positive_s_probability(margin: float) -> None:
    logits = np.linspace(-9, 9, 41)
    scores, positives = (grid.ravel() for grid in np.meshgrid(logits, logits + 0.01))
    expected = 1 / (1 + np.exp(-scores)) <= (1 - margin) / (1 + np.exp(-positives))
    np.testing.assert_array_equal(is_far(scores, positives, margin), expected)
    assert expected.any() and not expected.all()


def test_far_holds_where_probabilities_are_0_or_1_in_floating_point() -> None:
    assert is_far(np.array([-2000.0]), np.array([-1000.0]), 0.5)[0]
    assert not is_far(np.array([-1000.0]), np.array([-2000.0]), 0.5)[0]
    assert not is_far(np.array([900.0, 30.0]), np.array([900.0, 900.0]), 0.05).any()


def test_a_score_that_is_no_number_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranker_check, "load_ranker", lambda folder: folder)
    monkeypatch.setattr(ranker_check, "pair_scores", lambda model, pairs, **how: np.full(len(pairs), np.nan))
    with pytest.raises(UserError, match=r"nan; .*precision: fp32.*rounds\.ranker"):
        check(tmp_path)


@pytest.mark.medium
def test_a_round_takes_the_negatives_that_the_run_s_ranker_passes(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hard_negatives, "RANKER_MARGIN", 0.1)
    ingest, mine = write_world(tmp_path)
    rule = RoundParams(more=1, skip=0, depth=30, margin=0.0, ranker="cross")
    teacher_params = PARAMS.model_copy(
        update={"base": str(write_tower(tmp_path / "model")), "rounds": rule, "epochs": 1.0}
    )

    def run() -> None:
        teach(ingest, mine, tmp_path / "teach", teacher_params, NullRun(), tmp_path / "rankers")

    with pytest.raises(UserError, match=r"cross/tower: .*rounds\.ranker"):
        run()
    ranker = load_ranker(write_encoder(tmp_path / "encoder"), 32, seed=5)
    with torch.no_grad():
        ranker.model.classifier.weight.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    tower = tmp_path / "rankers/cross/tower"  # as the stage `rank` leaves it
    ranker.save_pretrained(str(tower), create_model_card=False)
    trained: list[list[TextTriplet]] = []

    def recorded(tower: Any, round_triplets: list[TextTriplet], *rest: Any) -> None:
        trained.append(round_triplets)
        train_tower(tower, round_triplets, *rest)

    monkeypatch.setattr(dual_encoder, "train_tower", recorded)
    run()
    first, second = trained
    plain = CrossEncoder(str(tower), device="cpu")

    def relevance(query: str, documents: list[str]) -> np.ndarray:
        logits = plain.predict([(query, document) for document in documents], activation_fn=torch.nn.Identity())
        return 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))

    changed = [(old, new) for old, new in zip(first, second, strict=True) if old.negative != new.negative]
    assert changed
    for _, new in changed:
        positive, negative = relevance(new.query, [new.positive, new.negative])
        assert negative <= 0.9 * positive + 1e-5
    corpus = [DocumentTemplate().text(row["title"], row["topic"], row["content"]) for row in documents()]
    refused = [(relevance(old.query, [old.positive]) * 0.9 < relevance(old.query, corpus)).sum() for old, _ in changed]
    assert max(refused) > 2, "the ranker has something to refuse"
