"""How long a training goes: by count, and until the held-out cosine no longer rises."""

import math
from itertools import pairwise

import pytest

from steps.distill.checkpoints import Done
from steps.distill.length import Counted, UntilConverged
from steps.distill.params import Convergence

LIMITS = Convergence(min_steps=100, max_steps=10_000, min_gain=0.01)


def train(length: UntilConverged, cosine, done: Done, *, last_step: int = 10**6) -> list[int]:
    """Steps as the trainer makes them; returns those at which it looked."""
    looked = []
    while done.step != length.steps and done.step < last_step:
        done.step += 1
        if length.should_validate(done.step):
            looked.append(done.step)
            length.record(done.step, cosine(done.step))
    return looked


def test_a_counted_training_warms_up_then_falls_in_a_line_to_its_end() -> None:
    length = Counted(10, warmup_ratio=0.2)
    factors = [length.factor(step) for step in range(10)]
    assert factors == pytest.approx([0.5, 1.0, *(remaining / 9 for remaining in range(8, 0, -1))])
    assert length.factor(10) == 0


def test_a_student_that_has_learned_all_at_once_takes_the_fewest_steps() -> None:
    done = Done()
    length = UntilConverged(LIMITS, 0.1, done, 0)
    looked = train(length, lambda step: 0.9, done)
    assert done.step == length.steps == 100
    assert looked == [48, 60, 75] and done.falls_from == 75 and not done.rising


@pytest.mark.parametrize(
    ("epoch", "max_steps"), [(30, 200), (100, 333), (1000, 10_000), (1234, 10_000), (9999, 10_000)]
)
def test_a_student_sees_an_epoch_even_where_it_learns_nothing_more(epoch: int, max_steps: int) -> None:
    limits, done = LIMITS.model_copy(update={"max_steps": max_steps}), Done()
    length = UntilConverged(limits, 0.1, done, epoch)
    train(length, lambda step: 0.9, done)
    assert max(epoch, 100) <= done.step <= 1.05 * max(epoch, 100) and not done.rising
    assert length.factor(0) == 0.1, "min_steps alone say how long it warms up"
    done = Done()  # and as much of an epoch as max_steps allow
    train(UntilConverged(limits, 0.1, done, 10**6), lambda step: 0.9, done)
    assert done.step == max_steps


def test_a_student_that_still_rises_goes_on_until_a_quarter_more_brings_too_little_twice() -> None:
    done = Done()
    length = UntilConverged(LIMITS, 0.1, done, 0)
    train(length, lambda step: 1 - step**-0.5, done)
    cosines = dict(map(tuple, done.seen))
    *_, before, last, final = sorted(cosines)
    assert cosines[last] - cosines[before] < 0.01 and cosines[final] - cosines[last] < 0.01
    earlier = sorted(cosines)[:-2]
    assert all(cosines[b] - cosines[a] >= 0.01 for a, b in pairwise(earlier))
    assert not done.rising


def test_one_look_without_a_gain_is_chance() -> None:
    done = Done()
    length = UntilConverged(LIMITS, 0.1, done, 0)
    seen = iter([0.5, 0.5, 0.6, 0.6, 0.6])
    looked = train(length, lambda _: next(seen), done)
    assert len(looked) == 5


def test_a_ceiling_ends_it_and_says_that_it_still_rose() -> None:
    done = Done()
    length = UntilConverged(LIMITS.model_copy(update={"max_steps": 1000}), 0.1, done, 0)
    train(length, lambda step: math.log(step) / 10, done)
    assert 500 < done.step <= 1000 and done.rising


def test_the_rate_stays_up_then_falls_in_a_line_and_is_never_0_before_the_end() -> None:
    done = Done()
    length = UntilConverged(LIMITS, 0.1, done, 0)
    factors = []
    while done.step != length.steps:
        factors.append(length.factor(done.step))
        done.step += 1
        if length.should_validate(done.step):
            length.record(done.step, 0.9)
    assert factors[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert factors[10:76] == [1.0] * 66
    assert factors[75:] == pytest.approx([remaining / 25 for remaining in range(25, 0, -1)])


@pytest.mark.parametrize("epoch", [0, 1500])
def test_a_training_that_is_continued_ends_where_it_would_have(epoch: int) -> None:
    def cosine(step: int) -> float:
        return 1 - step**-0.5

    uninterrupted, parts = Done(), Done()
    train(UntilConverged(LIMITS, 0.1, uninterrupted, epoch), cosine, uninterrupted)
    for last_step in (30, 61, 75, 200, 10**6):
        train(UntilConverged(LIMITS, 0.1, parts, epoch), cosine, parts, last_step=last_step)
    assert parts == uninterrupted
