"""Retention: a student's quality as a share of the teacher's, how sure that is, and whether it could be chance.

Retention follows METHODS of query-encoder alignment: the mean over data sets of student / teacher. The ratio of the
means and the worst data set are reported beside it, because the mean of ratios flatters where the teacher is weak.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy import stats

from slimtower.common.errors import UserError
from steps.retrieval.dataset_groups import units
from steps.retrieval.noninferiority import resampled_means

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
