"""Candidates: no positive of a query serves as its negative."""

import numpy as np

from steps.distill.candidates import Candidates

NEAREST = np.random.default_rng(3).permuted(np.tile(np.arange(60), (30, 1)), axis=1)
POSITIVES = {2: np.array([5, 9, 30]), 7: np.array([9]), 11: np.array([1, 2])}


def candidates_of(neighbours: int = 4, seed: int = 1) -> Candidates:
    return Candidates(POSITIVES, NEAREST[:, :neighbours], seed)


def test_a_batch_is_one_positive_of_each_text_and_all_their_neighbours() -> None:
    candidate, rows = candidates_of(), np.array([0, 2, 7, 20])
    batch = candidate.of(rows, 4)
    labels = [batch.documents[row].tolist() for row in batch.label]
    assert [len(label) for label in labels] == [0, 1, 1, 0]
    assert labels[1][0] in POSITIVES[2] and labels[2] == [9]
    near = {document for row in rows for document in candidate.nearest[row].tolist()}
    assert batch.documents.tolist() == sorted(near | {labels[1][0], labels[2][0]})
    assert batch.label.shape == batch.counts.shape == (4, len(batch.documents))
    for is_own, label, row in zip(batch.is_own, labels, rows.tolist(), strict=True):
        assert set(batch.documents[is_own].tolist()) == {*label, *candidate.nearest[row].tolist()}
    assert not batch.is_own.all()


def test_no_positive_of_a_query_counts_as_its_negative() -> None:
    candidate, rows = candidates_of(neighbours=60), np.array([0, 2, 7, 11])  # every document is a candidate
    for step in range(5):
        batch = candidate.of(rows, step)
        for position, row in enumerate(rows.tolist()):
            positives = set(POSITIVES.get(row, np.array([], dtype=int)).tolist())
            label = set(batch.documents[batch.label[position]].tolist())
            assert set(batch.documents[~batch.counts[position]].tolist()) == positives - label


def test_draws_follow_from_seed_and_step() -> None:
    def draw_labels(seed: int) -> list[list[int]]:
        batches = [candidates_of(seed=seed).of(np.array([2, 11, 12]), step) for step in range(20)]
        return [[int(batch.documents[label].item()) for label in batch.label[:2]] for batch in batches]

    assert draw_labels(1) == draw_labels(1) != draw_labels(2)
    assert {documents[0] for documents in draw_labels(1)} == {5, 9, 30}  # every positive has its turn


def test_a_batch_without_any_candidate_is_empty() -> None:
    batch = candidates_of(neighbours=0).of(np.array([0, 1]), 1)
    assert batch.documents.dtype == np.int64 and batch.label.shape == (2, 0)
