"""The gate approves what is no worse, refuses the rest with reasons, and does not care for order."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promote_fakes import evaluation, evidence, policy

from steps.promote import gate
from steps.promote.evidence import Evidence
from steps.promote.gate import decide
from steps.retrieval.noninferiority import NonInferiority, resampled_means

QUALITY = st.floats(0, 1)
PAIRS = st.lists(st.tuples(QUALITY, QUALITY), min_size=1, max_size=40)
# One data set, two slices and every limit in play: whatever hypothesis finds, better must not be worse.
POLICIES = st.builds(
    policy,
    margin=st.sampled_from([0.0, 0.005, 0.2]),
    first_floor=st.sampled_from([0.0, 0.3]),
    floors=st.sampled_from([{}, {"api": 0.4}]),
    max_p50_ms=st.sampled_from([0.5, 10.0]),
)


def test_bootstrap_means_are_those_of_a_plain_loop_over_the_same_draws() -> None:
    values = np.random.default_rng(1).random(37)
    rows = np.random.default_rng(5).integers(0, 37, (1000, 37))
    expected = [math.fsum(values[row]) / 37 for row in rows]
    np.testing.assert_allclose(resampled_means(values, 1000, 5), expected, atol=1e-12)


def test_bound_covers_the_true_difference_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    champion = generator.random((400, 500))
    candidate = champion + generator.normal(0.0, 0.15, champion.shape)  # truly equal
    rule = NonInferiority(margin=0.0, confidence=0.95, resamples=1000, seed=1)
    assert 0.92 < (rule.lower_bound(candidate, champion) <= 0).mean() < 0.98
    assert 0.92 < (rule.upper_bound(candidate, champion) >= 0).mean() < 0.98


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(pairs=PAIRS, gains=st.lists(QUALITY, min_size=40, max_size=40), rules=POLICIES, first=st.booleans())
def test_a_better_candidate_never_turns_approval_into_refusal(pairs, gains, rules, first) -> None:
    champion = None if first else evidence([theirs for _, theirs in pairs])
    worse = evidence([ours for ours, _ in pairs])
    better = evidence([ours + (1 - ours) * gain for (ours, _), gain in zip(pairs, gains, strict=False)])
    half = frozenset(f"q{i:02d}" for i in range(len(pairs) // 2))
    sliced = replace(worse.evaluation, slices={"api/half": half} if half else {})
    worse, better = replace(worse, evaluation=sliced), replace(better, evaluation=sliced, p50_ms=0.4, index_bytes=1)
    if decide(worse, champion, rules).approved:
        assert decide(better, champion, rules).approved


@settings(max_examples=40, deadline=None)
@given(pairs=PAIRS, seed=st.integers(0, 100), margin=st.sampled_from([0.0, 0.005]))
def test_the_order_of_queries_does_not_matter_and_equals_are_approved(pairs, seed, margin) -> None:
    candidate, champion = (evidence(list(side)) for side in zip(*pairs, strict=True))
    names = list(candidate.values["api"])
    random.Random(seed).shuffle(names)
    shuffled = replace(candidate, values={"api": {name: candidate.values["api"][name] for name in names}})
    assert decide(shuffled, champion, policy()) == decide(candidate, champion, policy())
    assert decide(candidate, candidate, policy(margin=margin, first_floor=0.0)).approved


def test_clearly_worse_is_refused_and_slightly_worse_needs_evidence() -> None:
    generator = np.random.default_rng(7)
    champion = generator.random(1000) * 0.9 + 0.1
    slightly = champion * 0.997  # within the margin on every query: proven no worse
    noisy = np.clip(champion * 0.997 + generator.normal(0, 0.2, 1000), 0, 1)
    assert decide(evidence(slightly), evidence(champion), policy()).approved
    for worse in (champion * 0.99, noisy):
        refused = decide(evidence(worse), evidence(champion), policy())
        assert not refused.approved
        assert "at worst" in refused.reasons[0]


def test_one_bad_data_set_is_enough_to_refuse() -> None:
    good = {f"q{i}": 0.5 for i in range(50)}
    champion = evidence({"one": good, "two": good})
    candidate = evidence({"one": dict.fromkeys(good, 0.9), "two": dict.fromkeys(good, 0.45)})
    decision = decide(candidate, champion, policy())
    assert [reason.partition(":")[0] for reason in decision.reasons] == ["two"]
    assert any(text.startswith("one:") for text in decision.passed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q02": math.nan}, "nDCG@10 of 'q02' is nan"),
        ({"q02": 1.5}, "nDCG@10 of 'q02' is 1.5"),
        ({"q02": None}, "no value for 1 test queries, 'q02'"),
        ({"q99": 0.5}, "values for 1 unknown queries, 'q99'"),
        (dict.fromkeys(("q00", "q01", "q02", "q03")), "no value for 4 test queries"),
    ],
)
def test_incomplete_evidence_is_refused_with_the_reason(changed: dict[str, float | None], message: str) -> None:
    complete = evidence([0.5] * 4, evaluation=evaluation({"api": [f"q{i:02d}" for i in range(4)]}))
    values = {name: value for name, value in (complete.values["api"] | changed).items() if value is not None}  # type: ignore[operator]
    part = replace(complete, values={"api": values})
    for side, decision in (
        ("candidate", decide(part, complete, policy())),
        ("champion", decide(complete, part, policy())),
    ):
        [reason] = decision.reasons
        assert not decision.approved and reason.startswith(f"{side}, api: {message}")


@pytest.mark.parametrize(
    ("candidate", "champion", "rules", "message"),
    [
        ({"p50_ms": 10.1}, {}, {}, "latency p50 10.100 ms"),
        ({"p50_ms": math.nan}, {}, {}, "latency"),
        ({"index_bytes": 1_000_001}, {}, {}, "index 1,000,001 bytes, champion 1,000, budget 1,000,000"),
        ({}, {}, {"floors": {"api": 0.6}}, "api: nDCG@10 0.5000, floor 0.6000"),
        ({}, {}, {"floors": {"apj": 0.1}}, "floors: 'apj' is neither a data set nor a slice"),
        ({}, {"datasets": frozenset({"api", "old"})}, {}, "old: the candidate has no index of it; the champion"),
        ({"datasets": frozenset()}, {}, {}, "api: the candidate has no index of it"),
        ({}, {"evaluation": evaluation({"api": ["q00"]}, "e" * 64), "values": {"api": {"q00": 0.1}}}, {},
         "candidate was measured on evaluation dddddddddddd, champion on eeeeeeeeeeee"),
    ],
)  # fmt: skip
def test_each_rule_refuses_alone(candidate, champion, rules, message) -> None:
    same = evidence([0.5] * 4)
    decision = decide(replace(same, **candidate), replace(same, **champion), policy(**rules))
    assert len(decision.reasons) == 1
    assert decision.reasons[0].startswith(message)
    assert decide(same, same, policy()).approved


def test_a_data_set_that_the_champion_never_served_gets_the_floor() -> None:
    values = {f"q{i}": 0.5 for i in range(5)}
    champion = replace(evidence({"old": values, "new": {}}), datasets=frozenset({"old"}))
    both = evaluation({"old": list(values), "new": list(values)})
    champion = replace(champion, evaluation=both)
    assert decide(evidence({"old": values, "new": values}), champion, policy()).approved
    low = evidence({"old": values, "new": dict.fromkeys(values, 0.1)})
    assert decide(low, champion, policy()).reasons == ("new: nDCG@10 0.1000, floor without a champion 0.3000",)


@pytest.mark.parametrize("theirs", [None, 0.0, 0.2])
def test_without_a_champion_or_with_one_below_the_floor_the_floor_must_be_reached(theirs: float | None) -> None:
    champion = None if theirs is None else evidence([theirs] * 4)
    refused, passed = (decide(evidence([value] * 4), champion, policy()) for value in (0.29, 0.3))
    assert passed.approved and not refused.approved
    assert refused.reasons[0].startswith("api: nDCG@10 0.2900, floor")
    warning = f"api: the champion itself reaches {theirs or 0:.4f} alone; do its documents have other ids by now?"
    assert (warning in refused.warned) == (warning in passed.warned) == (theirs is not None)
    above = evidence([0.3] * 4)
    assert not any("other ids" in text for text in decide(above, above, policy()).warned)


@pytest.mark.parametrize("champion", [None, evidence({"other": {"q0": 0.5}})])
def test_a_data_set_without_test_queries_is_told_before_it_is_served_and_refused_after(
    champion: Evidence | None,
) -> None:
    judged = evaluation({"other": ["q0"]})
    candidate = replace(evidence({"other": {"q0": 0.5}, "mute": {}}), evaluation=judged)
    first = decide(candidate, champion, policy())
    [warning] = [text for text in first.warned if text.startswith("mute: no test queries")]
    assert first.approved and "will be refused; give it some, or leave it out of the release" in warning
    second = decide(candidate, candidate, policy())
    [reason] = second.reasons
    assert reason.startswith("mute: served by the champion, but the evaluation has no test queries of it; give it some")
    assert "--name" in reason and not any(text.startswith("mute") for text in second.warned)


def test_a_slice_may_not_be_sacrificed_unless_it_is_too_small_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"q{i:02d}" for i in range(40)]
    judged = evaluation({"api": names}, api__short=names[:4])
    champion = evidence([0.5] * 40, evaluation=judged)
    candidate = evidence([0.4] * 4 + [0.9] * 36, evaluation=judged)
    refused = decide(candidate, champion, policy())
    assert refused.reasons == ("api/short: nDCG@10 0.4000, champion's 0.5000 less 5.0% 0.4750",)
    monkeypatch.setattr(gate, "SLICE_QUERIES", 5)
    assert decide(candidate, champion, policy()).approved
    floor = policy(floors={"api/short": 0.45})
    assert decide(candidate, champion, floor).reasons == ("api/short: nDCG@10 0.4000, floor 0.4500",)


def test_a_reported_slice_that_surely_loses_warns_or_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"q{i:02d}" for i in range(40)]
    reported = {
        "api/question": frozenset(names[:20]),
        "api/number": frozenset(names[20:]),
        "api/few": frozenset(names[:2]),
    }
    judged = replace(evaluation({"api": names}), reported=reported)
    champion = evidence([0.5] * 40, evaluation=judged)
    candidate = evidence([0.4] * 20 + [0.7] * 20, evaluation=judged)
    floors = [policy(floors={"api/number": floor}) for floor in (0.4, 0.9)]
    assert [decide(candidate, None, floor).approved for floor in floors] == [True, False]
    lost = "api/question: nDCG@10 0.4000 against 0.5000, surely a loss of more than 0.50% (20 queries, one of 2 slices)"
    warned = decide(candidate, champion, policy())
    assert warned.approved and warned.warned == (lost,)
    blocked = decide(candidate, champion, policy(slices="block"))
    assert not blocked.approved and blocked.reasons == (lost,) and not blocked.warned
    noisy = evidence([0.0, 0.98] * 10 + [0.6] * 20, evaluation=judged)
    monkeypatch.setattr(gate, "SLICE_QUERIES", 20)
    fine = decide(noisy, champion, policy(slices="block", margin=0.2))
    assert fine.approved and any(text.startswith("no slice surely loses") for text in fine.passed)
    assert decide(candidate, None, policy(slices="block")).approved, "nothing to compare with"
    monkeypatch.setattr(gate, "SLICE_QUERIES", 21)
    assert not decide(candidate, champion, policy(slices="block")).warned


@pytest.mark.parametrize(("queries", "warnings"), [(29, 1), (30, 0)])
def test_few_test_queries_are_told_and_refuse_nothing(queries: int, warnings: int) -> None:
    few = evidence([0.5] * queries)
    for decision in (decide(few, None, policy()), decide(few, few, policy())):
        assert decision.approved and len(decision.warned) == warnings
