"""A first champion: gate, choice and first sentence agree, on the queries of a demo run drawn anew."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from promote_fakes import evidence, policy

from steps.evaluate.choice import choose
from steps.evaluate.verdict import headline, replacing, verdicts
from steps.promote.gate import decide
from steps.retrieval.noninferiority import NonInferiority

DEMO = Path(__file__).parents[1] / "evaluate/demo_ndcg.npz"  # nDCG@10 by query of a run of the demo
P50 = {"static": 0.85, "4l": 2.6}
RULE = NonInferiority(margin=0.005, confidence=0.95, resamples=2000, seed=17)


def resampled_values(seed: int, suffix: str) -> dict[str, dict[str, np.ndarray]]:
    """`[split][model]`: the demo's values of queries that are drawn with replacement."""
    random, values = np.random.default_rng(seed), np.load(DEMO)
    sets: dict[str, dict[str, np.ndarray]] = {}
    for split in ("dev", "test"):
        rows = random.integers(0, len(values[f"{split}/teacher"]), len(values[f"{split}/teacher"]))
        names = {name: f"{split}/{name}{suffix}" for name in P50} | {"teacher": f"{split}/teacher"}
        sets[split] = {name: values[key].astype(float)[rows] for name, key in names.items()}
    return sets


def story(seed: int, suffix: str) -> tuple[str, str, dict[str, dict[str, Any]], dict[str, dict[str, np.ndarray]]]:
    """First sentence, choice, verdicts and values of a drawn evaluation."""
    sets = resampled_values(seed, suffix)
    verdict = verdicts({name: {"api": sets["test"][name]} for name in P50}, {"api": sets["test"]["teacher"]}, RULE)
    choice = choose(
        {name: [sets["dev"][name]] for name in P50},
        P50,
        0.0,
        RULE.model_copy(update={"margin": 0.02}),
        replacing=replacing(verdict),
    )
    metrics = {
        "verdict": verdict,
        "settings": {"margin": RULE.margin, "confidence": RULE.confidence},
        "served": {"teacher": {"p50_ms": 13.0}} | {name: {"p50_ms": value} for name, value in P50.items()},
        "sizes": {"teacher": {"bytes": 1}},
        "queries": {"api": {}},
    }
    assert choice["student"]
    return headline(metrics)[0], choice["student"], verdict["api"], sets


def gate(student: str, sets: dict[str, dict[str, np.ndarray]]) -> Any:
    """The decision on a student if there is no champion."""
    names = [f"q{row:04d}" for row in range(len(sets["test"]["teacher"]))]
    teacher = {"api": dict(zip(names, map(float, sets["test"]["teacher"]), strict=True))}
    candidate = evidence(list(sets["test"][student]))
    candidate = replace(candidate, values={"api": dict(zip(names, map(float, sets["test"][student]), strict=True))})
    candidate = replace(candidate, evaluation=replace(candidate.evaluation, queries={"api": frozenset(names)}))
    rules = policy(**RULE.model_dump(), max_p50_ms=1000.0)
    return decide(replace(candidate, teacher=teacher), None, rules)


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["+bm25", ""])
def test_sentence_choice_and_gate_agree_however_the_queries_are_drawn(suffix: str) -> None:
    for seed in range(50):
        sentence, student, verdict, sets = story(seed, suffix)
        answers = {name: row["answer"] for name, row in verdict.items()}
        decision = gate(student, sets)
        if "yes" in answers.values():
            first = sentence.partition(" ")[0]
            assert answers[first] == answers[student] == "yes" and "can replace the teacher" in sentence
            assert gate(first, sets).approved and decision.approved and not decision.warned, sentence
        elif answers[student] == "no":
            assert not decision.approved
        else:
            assert decision.approved and decision.warned, "nobody can tell: that is said"
        for name, answer in answers.items():
            assert gate(name, sets).approved == (answer != "no")


def test_a_teacher_without_values_or_of_other_queries_is_not_compared() -> None:
    lone = evidence([0.5] * 40)
    assert decide(lone, None, policy()).approved
    unmatched = replace(lone, teacher={"api": {"elsewhere": 0.9}, "dark": {"q": 0.0}})
    assert decide(unmatched, None, policy()).approved


def test_a_surely_worse_student_is_refused_as_the_first_champion_and_told_what_allows_it() -> None:
    worse = evidence([0.5] * 400)
    names = list(worse.values["api"])
    worse = replace(worse, teacher={"api": dict.fromkeys(names, 0.6)})
    refused = decide(worse, None, policy())
    assert not refused.approved and "promote.policy.margin" in refused.reasons[0]
    assert decide(worse, None, policy(margin=0.2)).approved
