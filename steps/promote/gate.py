"""The gate: may this candidate replace the champion? A pure function of evidence and policy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from steps.promote.evidence import MEASURE, Evidence
from steps.promote.params import Policy
from steps.retrieval.noninferiority import FEWEST

SLICE_LOSS = 0.05  # largest share of the champion's nDCG@10 that a slice by length may lose
SLICE_QUERIES = 100  # fewest of a slice: smaller ones are too noisy to refuse on


@dataclass(frozen=True)
class Decision:
    """The verdict, why it is not better, and what spoke for the candidate."""

    approved: bool
    reasons: tuple[str, ...]  # empty when approved
    passed: tuple[str, ...]
    warned: tuple[str, ...] = ()  # what refuses nothing, but somebody should see

    def lines(self) -> list[str]:
        """The decision for a reader, one check a line."""
        verdict = "approved" if self.approved else "refused"
        named = (("no", self.reasons), ("warning", self.warned), ("ok", self.passed))
        return [verdict, *(f"  {mark}  {text}" for mark, texts in named for text in texts)]


class Check(NamedTuple):
    """One question of the policy and its answer."""

    passed: bool
    text: str
    warns: bool = False  # a failure refuses nothing


def decide(candidate: Evidence, champion: Evidence | None, policy: Policy) -> Decision:
    """Approve if every check passes. Without a champion the candidate is compared with the teacher that serves today.

    If both were not measured on the same evaluation, and on all of its queries, nothing is compared.
    """
    checks = [*_complete("candidate", candidate), *(_complete("champion", champion) if champion else ())]
    if champion and champion.evaluation.digest != candidate.evaluation.digest:
        mine, theirs = candidate.evaluation.digest[:12], champion.evaluation.digest[:12]
        checks.append(Check(False, f"candidate was measured on evaluation {mine}, champion on {theirs}"))
    if not checks:
        checks = [
            *_coverage(candidate, champion),
            *_budgets(candidate, champion, policy),
            *_floors(candidate, policy),
            *_against_champion(candidate, champion, policy),
            *(_slices(candidate, champion, policy) if champion else ()),
        ]
    failed = tuple(check.text for check in checks if not check.passed and not check.warns)
    warned = tuple(check.text for check in checks if not check.passed and check.warns)
    return Decision(not failed, failed, tuple(check.text for check in checks if check.passed), warned)


def _complete(who: str, evidence: Evidence) -> Iterable[Check]:
    """Every query of every data set that the release serves has a value between 0 and 1."""
    if not evidence.evaluation.queries:
        yield Check(False, f"{who}: the evaluation has no test queries")
    for dataset, queries in sorted(evidence.evaluation.queries.items()):
        if dataset not in evidence.datasets:
            continue
        values = evidence.values.get(dataset, {})
        missing, extra = sorted(queries - set(values)), sorted(set(values) - queries)
        if missing:
            yield Check(False, f"{who}, {dataset}: no value for {len(missing)} test queries, {missing[0]!r} among them")
        if extra:
            yield Check(False, f"{who}, {dataset}: values for {len(extra)} unknown queries, {extra[0]!r} among them")
        wrong = sorted(query for query, value in values.items() if not 0 <= value <= 1)  # NaN is not
        if wrong:
            yield Check(False, f"{who}, {dataset}: {MEASURE} of {wrong[0]!r} is {values[wrong[0]]}, not in [0, 1]")


def _coverage(candidate: Evidence, champion: Evidence | None) -> Iterable[Check]:
    """The candidate serves every data set that is evaluated or that the champion serves; few queries are told."""
    served = champion.datasets if champion else frozenset()
    for dataset in sorted((set(candidate.evaluation.queries) | served) - candidate.datasets):
        reason = (
            "; the champion serves it: other data need a model of another name (--name)" if dataset in served else ""
        )
        yield Check(False, f"{dataset}: the candidate has no index of it{reason}")
    for dataset in sorted(candidate.datasets - set(candidate.evaluation.queries)):
        if dataset in served:
            reason = "served by the champion, but the evaluation has no test queries of it; give it some, or release"
            yield Check(False, f"{dataset}: {reason} without it as a model of another name (--name)")
        else:
            reason = "no test queries, so nothing is checked, and the promotion after this one will be refused; give it"
            yield Check(False, f"{dataset}: {reason} some, or leave it out of the release", warns=True)
    for dataset, queries in sorted(candidate.evaluation.queries.items()):
        if dataset in candidate.datasets and len(queries) < FEWEST:
            message = f"{dataset}: {len(queries)} test queries prove little; judge {FEWEST} or more"
            yield Check(False, message, warns=True)


def _budgets(candidate: Evidence, champion: Evidence | None, policy: Policy) -> Iterable[Check]:
    p50 = f", champion {champion.p50_ms:.3f} ms" if champion else ""
    size = f", champion {champion.index_bytes:,}" if champion else ""
    yield Check(
        candidate.p50_ms <= policy.max_p50_ms,
        f"latency p50 {candidate.p50_ms:.3f} ms{p50}, budget {policy.max_p50_ms:g} ms",
    )
    yield Check(
        candidate.index_bytes <= policy.max_index_bytes,
        f"index {candidate.index_bytes:,} bytes{size}, budget {policy.max_index_bytes:,}",
    )


def _floors(candidate: Evidence, policy: Policy) -> Iterable[Check]:
    for name, floor in sorted(policy.floors.items()):
        dataset = name.partition("/")[0]
        judged = candidate.evaluation
        queries = judged.slices.get(name) or judged.reported.get(name) or judged.queries.get(name)
        if not queries:
            yield Check(False, f"floors: {name!r} is neither a data set nor a slice of the evaluation")
        elif dataset in candidate.datasets:
            yield _floor(name, _mean(candidate.values[dataset], queries), floor, "floor")


def _against_champion(candidate: Evidence, champion: Evidence | None, policy: Policy) -> Iterable[Check]:
    """Non-inferiority on each data set; the floor for a first model where the champion has no index, or is below it.

    A champion finds nothing where documents have other ids by now; no worse than that is no proof.
    """
    for dataset, queries in sorted(candidate.evaluation.queries.items()):
        if dataset not in candidate.datasets:
            continue
        mean = _mean(candidate.values[dataset], queries)
        if champion is None or dataset not in champion.datasets:
            yield _floor(dataset, mean, policy.first_floor, "floor without a champion")
            yield from _against_teacher(dataset, candidate, policy)
            continue
        if (theirs := _mean(champion.values[dataset], queries)) < policy.first_floor:
            message = f"the champion itself reaches {theirs:.4f} alone; do its documents have other ids by now?"
            yield Check(False, f"{dataset}: {message}", warns=True)
            yield _floor(dataset, mean, policy.first_floor, "floor where the champion itself is below it")
        yield _no_worse(dataset, candidate.values[dataset], champion.values[dataset], policy)


def _against_teacher(dataset: str, candidate: Evidence, policy: Policy) -> Iterable[Check]:
    """Refuse a first champion that surely loses too much, as the evaluation's verdict does; warn if nobody can tell."""
    compared = {name: values for name, values in candidate.teacher.items() if any(values.values())}
    if dataset not in compared or compared[dataset].keys() != candidate.values[dataset].keys():
        return
    verdict = policy.judge(*_arrays(candidate.values[dataset], compared[dataset]), len(compared))
    change = f"{verdict.change:+.2%} against the teacher, from {verdict.low:+.2%} to {verdict.high:+.2%}"
    text = f"{dataset}: {MEASURE} {change} with {policy.confidence:.0%} confidence ({-policy.margin:+.2%} is allowed)"
    match verdict.answer:
        case "yes":
            yield Check(True, text)
        case "no":
            yield Check(False, f"{text}; raise promote.policy.margin if you can allow that loss")
        case "cannot tell":
            enough = float(f"{verdict.enough or 0:.2g}")
            more = f"about {enough:,.0f} would" if enough else "more of them would not either"
            yield Check(
                False, f"{text}; {verdict.queries:,} queries cannot show that it is allowed, {more}", warns=True
            )


def _no_worse(dataset: str, ours: Mapping[str, float], theirs: Mapping[str, float], policy: Policy) -> Check:
    candidate, champion = _arrays(ours, theirs)
    bound = float(policy.lower_bound(candidate, champion))
    mean = float(champion.mean())
    change = (
        f", {candidate.mean() / mean - 1:+.2%}, at worst {bound / mean - policy.margin:+.2%}" if mean > 0.001 else ""
    )
    return Check(
        bound >= 0,
        f"{dataset}: {MEASURE} {candidate.mean():.4f} against {mean:.4f}{change} with {policy.confidence:.0%}"
        f" confidence (allowed {-policy.margin:+.2%}, {len(theirs)} queries, {(candidate > champion).sum()} better,"
        f" {(candidate < champion).sum()} worse)",
    )


def _slices(candidate: Evidence, champion: Evidence, policy: Policy) -> Iterable[Check]:
    """Slices of enough queries: none by length loses more than SLICE_LOSS, none of the report surely the margin.

    Of many slices some drop by chance: each is tested with the confidence that Bonferroni's correction leaves it.
    """
    by_length, reported = (
        {
            name: (_part(candidate, name, queries), _part(champion, name, queries))
            for name, queries in sorted(slices.items())
            if name.partition("/")[0] in champion.datasets & candidate.datasets and len(queries) >= SLICE_QUERIES
        }
        for slices in (candidate.evaluation.slices, candidate.evaluation.reported)
    )
    for name, (ours, theirs) in by_length.items():
        mean = _mean(theirs, theirs)
        minimum, label = (1 - SLICE_LOSS) * mean, f"champion's {mean:.4f} less {SLICE_LOSS:.1%}"
        yield _floor(name, _mean(ours, ours), minimum, label)
    corrected = {"confidence": 1 - (1 - policy.confidence) / max(1, len(reported))}
    stricter, worse = policy.model_copy(update=corrected), 0
    for name, parts in reported.items():
        ours_values, their_values = _arrays(*parts)
        if stricter.upper_bound(ours_values, their_values) < 0:
            worse += 1
            text = (
                f"{name}: {MEASURE} {ours_values.mean():.4f} against {their_values.mean():.4f}, surely a loss of more"
                f" than {policy.margin:.2%} ({len(ours_values)} queries, one of {len(reported)} slices)"
            )
            yield Check(False, text, warns=policy.slices == "warn")
    if reported and not worse:
        yield Check(True, f"no slice surely loses more than {policy.margin:.2%} ({len(reported)} reported slices)")


def _part(evidence: Evidence, name: str, queries: Iterable[str]) -> dict[str, float]:
    values = evidence.values[name.partition("/")[0]]
    return {query: values[query] for query in queries}


def _arrays(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Values of the same queries, by id: the draws go by position, and the order of a log must not matter."""
    order = sorted(theirs)
    return np.array([ours[query] for query in order]), np.array([theirs[query] for query in order])


def _floor(name: str, value: float, floor: float, label: str) -> Check:
    return Check(value >= floor, f"{name}: {MEASURE} {value:.4f}, {label} {floor:.4f}")


def _mean(values: Mapping[str, float], queries: Iterable[str]) -> float:
    return float(np.mean([values[query] for query in sorted(queries)]))
