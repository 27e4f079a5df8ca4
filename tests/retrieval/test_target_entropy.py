"""Whether scores teach anything: entropies against a float64 reference, and what is said of them."""

import math

import numpy as np
import pytest

from steps.retrieval.target_entropy import Sample, check_teacher_targets, suggested_temperature

RANDOM = np.random.default_rng(5)
SCORES = RANDOM.normal(size=(400, 16))


def mean_entropy(scores: np.ndarray, temperature: float) -> float:
    total = 0.0
    for row in scores.tolist():
        shares = [math.exp((score - max(row)) / temperature) for score in row]
        total -= sum(share / sum(shares) * math.log(share / sum(shares)) for share in shares if share)
    return total / len(scores) / math.log(scores.shape[1])


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
def test_the_suggested_temperature_halves_the_entropy_whatever_the_scale(scale: float) -> None:
    temperature = suggested_temperature(scale * SCORES)
    assert temperature == pytest.approx(scale * (suggested_temperature(SCORES) or 0), rel=1e-3)
    assert mean_entropy(scale * SCORES, temperature) == pytest.approx(0.5, abs=1e-3)
    assert suggested_temperature(scale * SCORES + 1000 * scale) == pytest.approx(temperature, rel=1e-3)


def test_entropy_and_largest_share_at_temperature_1_are_means_over_texts() -> None:
    targets = check_teacher_targets(SCORES)
    assert targets is not None and targets.verdict == "useful" and targets.warning("cross") is None
    assert targets.entropy == pytest.approx(mean_entropy(SCORES, 1.0))
    shares = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    assert targets.largest_share == pytest.approx(shares.max(axis=1).mean())


@pytest.mark.parametrize(
    ("scores", "verdict", "words"),
    [
        (0.05 * SCORES, "flat", "flat at temperature 1 .*there is nothing to learn; set teacher_temperature: 0.02"),
        (90 * SCORES, "one-hot", "one-hot at temperature 1 .*no more than a label; set teacher_temperature: 3"),
        (np.ones((5, 4)), "constant", "flat at any temperature"),
        (
            np.repeat(SCORES[:, :1], 16, axis=1) - np.arange(16) * (np.arange(16) > 7),
            "constant",
            "many scores are equal",
        ),
        (np.vstack([1e-6 * SCORES, 100 * SCORES]), "uneven", "flat for 50% of the texts and one-hot for .*no one"),
    ],
)
def test_what_teaches_nothing_is_said_with_numbers_and_what_to_do(scores: np.ndarray, verdict: str, words: str) -> None:
    targets = check_teacher_targets(scores.astype(np.float32))
    assert targets is not None and targets.verdict == verdict
    with pytest.raises(AssertionError, match=rf"over {scores.shape[1]} documents of a text cross's .*{words}"):
        raise AssertionError(targets.warning("cross"))


def test_texts_whose_best_documents_are_copies_do_not_decide_the_temperature() -> None:
    copies = np.sort(SCORES, axis=1)
    copies[:, 8:] = copies[:, -1:]
    mixed = np.concatenate([copies, copies, copies, SCORES])
    assert suggested_temperature(mixed) == pytest.approx(suggested_temperature(SCORES) or 0, rel=1e-2)
    assert suggested_temperature(copies) is None
    few = np.concatenate([copies[:100], SCORES])
    assert mean_entropy(few, suggested_temperature(few) or 0) == pytest.approx(0.5, abs=1e-3)


def test_nothing_is_said_of_one_document_or_no_text() -> None:
    assert check_teacher_targets(np.zeros((3, 1))) is None
    assert check_teacher_targets(np.zeros((0, 5))) is None


def test_a_sample_is_even_whatever_the_shards() -> None:
    rows = np.arange(100)[:, None]
    for size in (1, 7, 100):
        sample = Sample(100, limit=25)
        for start in range(0, 100, size):
            sample.add(rows[start : start + size])
        assert sample.all()[:, 0].tolist() == list(range(0, 100, 4))
