"""Systems against each other: shares of the teacher's quality, paired tests, and how far two find the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from slimtower.common.errors import UserError
from steps.core.measures import NDCG, UNCUT
from steps.evaluate.closeness import DEPTH, overlaps
from steps.evaluate.measuring import Result
from steps.evaluate.scoring import read_hits
from steps.evaluate.systems import TEACHER
from steps.retrieval.dataset_groups import units
from steps.retrieval.noninferiority import FEWEST, resampled_means

Paired = Mapping[str, tuple[np.ndarray, np.ndarray]]  # data set -> (student, teacher), each `(queries,)`


@dataclass(frozen=True)
class Share:
    """Retention on one data set, a ratio with its 95 % bootstrap interval."""

    ratio: float
    ci95_low: float
    ci95_high: float

    def as_dict(self) -> dict[str, float]:
        """Field name -> value."""
        return asdict(self)


@dataclass(frozen=True)
class Retention:
    """Retention as ratios (1.0 = as good as the teacher) with a 95 % bootstrap interval of the mean of ratios."""

    mean_of_ratios: float
    ratio_of_means: float
    worst: float
    ci95_low: float
    ci95_high: float
    of_set: Mapping[str, Share]
    """By data set, but those where the teacher has 0; those that count as one are one."""

    def as_dict(self) -> dict[str, float]:
        """Field name -> value, but for `of_set`."""
        return {name: value for name, value in asdict(self).items() if name != "of_set"}


@dataclass(frozen=True)
class Comparison:
    """A paired comparison on one data set: two-sided t-test, and queries won, tied and lost by the student."""

    p_value: float
    wins: int
    ties: int
    losses: int

    def as_dict(self) -> dict[str, float]:
        """Field name -> value."""
        return asdict(self)


def retention(paired: Paired, samples: int, seed: int, as_one: Sequence[str] = ()) -> Retention:
    """Retention over data sets; those where the teacher scores 0, of which no ratio has a meaning, are left out.

    `as_one`: data sets named `<name>-...` count as one, whose quality is the mean over them. UserError where the
    teacher scores 0 on all.
    """
    members = {
        name: datasets
        for name, datasets in units(paired, as_one).items()
        if any(paired[dataset][1].mean() > 0 for dataset in datasets)
    }
    if not members:
        raise UserError(
            f"models/teach: the teacher's nDCG@10 is 0 on all of {sorted(paired)}: no student has a retention; check"
            " the qrels"
        )
    students = np.array([np.mean([paired[dataset][0].mean() for dataset in datasets]) for datasets in members.values()])
    teachers = np.array([np.mean([paired[dataset][1].mean() for dataset in datasets]) for datasets in members.values()])
    ratios = students / teachers
    means = bootstrap_means(paired, samples, seed)
    resampled = np.stack(
        [_ratio(np.mean([means[dataset] for dataset in datasets], axis=0)) for datasets in members.values()]
    )
    low, high = _middle(np.mean(resampled, axis=0))
    return Retention(
        mean_of_ratios=float(ratios.mean()),
        ratio_of_means=float(students.mean() / teachers.mean()),
        worst=float(ratios.min()),
        ci95_low=low,
        ci95_high=high,
        of_set={
            name: Share(float(ratio), *_middle(draws))
            for name, ratio, draws in zip(members, ratios, resampled, strict=True)
        },
    )


def bootstrap_means(paired: Paired, samples: int, seed: int) -> dict[str, np.ndarray]:
    """Means of student and teacher, `(2, samples)` by data set, over resamplings of its queries, drawn together."""
    generator = np.random.default_rng(seed)
    resampled = {}
    for name, (student, teacher) in paired.items():
        means = resampled_means(np.stack([student, teacher], axis=1), samples, generator).T
        resampled[name] = np.where(means[1] > 0, means, np.array([[student.mean()], [teacher.mean()]]))
    return resampled


def _ratio(means: np.ndarray) -> np.ndarray:
    """Student / teacher of `(2, samples)`."""
    return np.asarray(means[0] / means[1])


def _middle(values: np.ndarray) -> tuple[float, float]:
    """Ends of the middle 95 %."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def compare(student: np.ndarray, teacher: np.ndarray) -> Comparison:
    """Paired two-sided t-test over queries, and who wins them."""
    difference = student - teacher
    won, tied, lost = (int(count.sum()) for count in (difference > 0, difference == 0, difference < 0))
    return Comparison(p_value([difference]), won, tied, lost)


def is_gain(difference: float, p_value: float) -> bool:
    """Whether a mean difference is above 0, and significantly so at 5 %."""
    return difference > 0 and not is_chance(p_value)


def is_chance(p_value: float) -> bool:
    """Whether chance explains a difference, at 5 %."""
    return p_value > 0.05


def p_value(differences: Sequence[np.ndarray], weights: Sequence[float] | None = None) -> float:
    """Two-sided t-test that the mean over data sets of the mean difference is 0; one array `(queries,)` a data set.

    `weights` of the data sets in that mean; None = alike.

    With one data set this is the paired t-test. Several count alike, whatever their numbers of queries, each with its
    own variance and the degrees of freedom of Welch and Satterthwaite. A data set of one query, which has none, is left
    out. 1 where no query differs or no data set is left; 0 where all differ by the same amount, as no variance stands
    against it.
    """
    usable = [at for at, values in enumerate(differences) if len(values) > 1]
    if not usable:
        return 1.0
    shares = np.ones(len(usable)) if weights is None else np.array([weights[at] for at in usable])
    differences = [differences[at] for at in usable]
    total = float(sum(values.mean() * share for values, share in zip(differences, shares, strict=True)))
    variances = np.array([values.var(ddof=1) / len(values) if np.ptp(values) else 0.0 for values in differences])
    variances *= shares**2
    if not variances.any():
        return float(total == 0)
    freedom = variances.sum() ** 2 / sum(
        variance**2 / (len(values) - 1) for variance, values in zip(variances, differences, strict=True)
    )
    return float(2 * stats.t.sf(abs(total) / np.sqrt(variances.sum()), freedom))


def figures(values: Mapping[str, np.ndarray], samples: int, seed: int) -> dict[str, Any]:
    """`queries`, `ndcg` by model and `retention` by model but the teacher, of nDCG@10 `(queries,)` by model.

    A retention is `ratio`, `ci95_low` and `ci95_high`: the ratio of the means, with the percentile bootstrap over
    queries, all models drawn together (Efron and Tibshirani 1993, ch. 13). Without any where the teacher has 0.
    """
    teacher = values[TEACHER]
    named: dict[str, Any] = {
        "queries": len(teacher),
        "ndcg": {model: float(scores.mean()) for model, scores in values.items()},
        "retention": {},
    }
    if teacher.mean() <= 0:
        return named
    compared = [model for model in values if model != TEACHER]
    resampled = resampled_means(np.stack([teacher, *(values[model] for model in compared)], axis=1), samples, seed)
    resampled = resampled[resampled[:, 0] > 0]  # of the rest no ratio is defined
    for column, model in enumerate(compared, start=1):
        low, high = np.quantile(resampled[:, column] / resampled[:, 0], [0.025, 0.975])
        ratio = float(values[model].mean() / teacher.mean())
        named["retention"][model] = {"ratio": ratio, "ci95_low": float(low), "ci95_high": float(high)}
    return named


@dataclass(frozen=True)
class Tested:
    """Mean difference, student less teacher, and how likely chance alone makes one as large: two-sided p-values.

    `p_bootstrap` is None for fewer than FEWEST queries: so few are resampled into too few means.
    """

    difference: float
    p_value: float
    p_bootstrap: float | None
    p_holm: float

    def as_dict(self) -> dict[str, float]:
        """Field name -> value, without what is None."""
        return {name: value for name, value in vars(self).items() if value is not None}


Tests = dict[str, dict[str, dict[str, Tested]]]


def significance(teacher: Result, students: Mapping[str, Result], samples: int, seed: int) -> Tests:
    """`[data set][student][measure]` on test queries; `p_holm` is the t-test's within the measure's family.

    `samples`: resamplings of the bootstrap. A query that a measure has no value of counts in no test of it.
    """
    outcomes: dict[tuple[str, str, str], tuple[float, float, float | None]] = {}
    for name, student in students.items():
        for ours, theirs in zip(student.of_split("test"), teacher.of_split("test"), strict=True):
            for measure in ours.values.keys() - {UNCUT}:
                difference = ours.values[measure] - theirs.values[measure]
                difference = difference[~np.isnan(difference)]
                chance = bootstrap_p_value(difference, samples, seed) if len(difference) >= FEWEST else None
                key = (measure, ours.judged.dataset, name)
                outcomes[key] = float(difference.mean()), p_value([difference]), chance
    tests: Tests = {}
    for measure in sorted({measure for measure, _, _ in outcomes}, key=lambda item: (item != NDCG, item)):
        family = {key: values for key, values in outcomes.items() if key[0] == measure}
        adjusted = holm([chance for _, chance, _ in family.values()])
        for ((_, dataset, name), values), p_holm in zip(family.items(), adjusted, strict=True):
            tests.setdefault(dataset, {}).setdefault(name, {})[measure] = Tested(*values, p_holm)
    return tests


def bootstrap_p_value(difference: np.ndarray, samples: int, seed: int) -> float:
    """Two-sided paired bootstrap test that the mean of `(queries,)` differences is 0, by resampling them centred.

    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 16.4. 1 / (samples + 1) is the least there is.
    """
    mean = difference.mean()
    resampled = resampled_means(difference - mean, samples, seed)
    return float((1 + (np.abs(resampled) >= abs(mean) - 1e-12).sum()) / (samples + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of a family: each is at most alpha where Holm's step-down procedure rejects at alpha.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted, greatest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = greatest
    return adjusted


def significant(p_value: float) -> str:
    """A p-value as people read it."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


PERSISTENCE = 0.9  # p: how likely a reader goes on to the next hit; the first ten then weigh 86 %

Agreement = dict[str, dict[str, dict[str, float]]]


def rank_biased_overlap(first: Sequence[str], second: Sequence[str], persistence: float = PERSISTENCE) -> float:
    """Extrapolated rank-biased overlap of two rankings, 0 to 1, to the depth of the shorter one.

    RBO_ext = X_k / k p^k + (1 - p) / p * sum over d of X_d / d p^d, with X_d the size of the overlap of the first d
    (Webber, Moffat and Zobel, "A similarity measure for indefinite rankings", 2010, Eq. 30). 1 for two empty rankings.
    """
    depth = min(len(first), len(second))
    if not depth:
        return float(len(first) == len(second))
    seen: tuple[set[str], set[str]] = (set(), set())
    common, total = 0, 0.0
    for at in range(depth):
        a, b = first[at], second[at]
        common += 1 if a == b else (a in seen[1]) + (b in seen[0])
        seen[0].add(a)
        seen[1].add(b)
        total += common / (at + 1) * persistence ** (at + 1)
    return common / depth * persistence**depth + (1 - persistence) / persistence * total


def agreement(runs: Iterable[Path], reference: str, systems: Sequence[str]) -> Agreement:
    """`[data set][system]` -> mean `rbo` and `overlap` with the reference over test queries, from TREC run files.

    `overlap`: share of the reference's first ten that are among the system's.
    """
    files: dict[str, dict[str, Path]] = {}
    for path in runs:
        dataset, _, system = path.name.removesuffix(".run").partition(".")
        files.setdefault(dataset, {})[system] = path
    agreements: Agreement = {}
    for dataset, by_system in sorted(files.items()):
        reference_hits = read_hits(by_system[reference])
        agreements[dataset] = {
            name: _means(reference_hits, read_hits(by_system[name])) for name in systems if name in by_system
        }
    return agreements


def _means(reference: Mapping[str, Sequence[str]], system: Mapping[str, Sequence[str]]) -> dict[str, float]:
    pairs = [(expected, system.get(query, [])) for query, expected in reference.items()]
    same = overlaps([expected[:DEPTH] for expected, _ in pairs], [hits[:DEPTH] for _, hits in pairs])
    return {
        "rbo": float(np.mean([rank_biased_overlap(expected, hits) for expected, hits in pairs])),
        "overlap": float(same.mean()),
    }
