"""An epoch sees each part as often as its weight says; held-out texts are never trained on."""

from collections import Counter

import numpy as np
import pytest

from slimtower.common.errors import UserError
from steps.distill.mixture import epoch_rows, hold_out, rows_of, with_documents

PARTS = np.array(["unlabelled_queries"] * 100 + ["titles"] * 50)


def test_weights_are_repetitions_and_epochs_differ() -> None:
    def draw_rows(weights: dict[str, float], epoch: int = 0) -> list[int]:
        return epoch_rows(np.arange(150), PARTS, weights, seed=1, epoch=epoch).tolist()

    times = Counter(draw_rows({"unlabelled_queries": 2.5, "titles": 1.0}))
    assert {times[row] for row in range(100)} == {2, 3}
    assert sum(times[row] for row in range(100)) == 250
    assert all(times[row] == 1 for row in range(100, 150))
    assert set(draw_rows({"unlabelled_queries": 0.0, "titles": 1.0})) == set(range(100, 150))
    half = {"unlabelled_queries": 0.5}
    assert draw_rows(half) == draw_rows(half) != draw_rows(half, epoch=1)


def test_parts_without_weight_do_not_train_and_no_part_with_one_is_an_error() -> None:
    assert rows_of(PARTS, {"titles": 0.5, "unlabelled_queries": 0.0}).tolist() == list(range(100, 150))
    with pytest.raises(UserError, match="no alignment text"):
        rows_of(PARTS, {"sentences": 1.0, "unlabelled_queries": 0.0})


def test_hold_out_is_a_partition() -> None:
    parts = np.full(1000, "titles")
    training, validation = hold_out(np.arange(1000), parts, 64, seed=3)
    assert len(validation) == 64
    assert sorted([*training, *validation]) == list(range(1000))
    assert len(hold_out(np.arange(50), parts, 64, seed=3)[1]) == 5


def test_spans_validate_only_where_other_texts_are_too_few() -> None:
    parts = np.repeat(["titles", "spans"], [100, 900])
    assert set(parts[hold_out(np.arange(1000), parts, 40, seed=3)[1]]) == {"titles"}
    training, validation = hold_out(np.arange(1000), parts, 80, seed=3)
    assert Counter(parts[validation].tolist()) == {"titles": 50, "spans": 30}
    assert sorted([*training, *validation]) == list(range(1000))


@pytest.mark.parametrize(("documents", "share"), [(20, 0.5), (900, 0.5), (20, 0.1), (900, 0.9)])
def test_documents_are_a_share_of_an_epochs_texts_however_many_there_are(documents: int, share: float) -> None:
    parts = np.concatenate([PARTS, np.full(documents, "documents")])
    training, repeats = with_documents(np.arange(140), parts, {"unlabelled_queries": 2.0, "titles": 0.5}, share)
    epoch_parts = parts[epoch_rows(training, parts, repeats, seed=1, epoch=0)]
    assert Counter(epoch_parts.tolist())["unlabelled_queries"] == 200 and Counter(epoch_parts.tolist())["titles"] == 20
    assert (epoch_parts == "documents").mean() == pytest.approx(share, abs=0.01)


def test_without_a_share_or_without_documents_the_other_texts_are_seen_alone() -> None:
    parts = np.concatenate([PARTS, np.full(30, "documents")])
    for there, share in ((parts, 0.0), (PARTS, 0.5)):
        training, repeats = with_documents(np.arange(150), there, {"titles": 1.0}, share)
        assert set(there[epoch_rows(training, there, repeats, seed=1, epoch=0)]) == {"titles"}
