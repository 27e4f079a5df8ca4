"""Systems against each other: shares of the teacher's quality, paired tests, and the spread over seeds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.measures import units
from steps.evaluate.systems import TEACHER
from steps.retrieval.noninferiority import FEWEST, resampled_means

Paired = Mapping[str, tuple[np.ndarray, np.ndarray]]  # data set -> (student, teacher), each `(queries,)`


def retention(
    paired: Paired, samples: int, seed: int, as_one: Sequence[str] = ()
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Retention over data sets, and `[data set]`; ratios, 1.0 = as good as the teacher; fields as in metrics.json.

    Data sets where the teacher scores 0 are left out. `as_one`: data sets named `<name>-...` count as one, whose
    quality is the mean over them. UserError where the teacher scores 0 on all.
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
    students, teachers = (
        np.array([np.mean([paired[dataset][at].mean() for dataset in datasets]) for datasets in members.values()])
        for at in (0, 1)
    )
    ratios, means = students / teachers, bootstrap_means(paired, samples, seed)
    joint = [np.mean([means[dataset] for dataset in datasets], axis=0) for datasets in members.values()]
    resampled = np.stack([ours / theirs for ours, theirs in joint])
    overall = {
        "mean_of_ratios": float(ratios.mean()),
        "ratio_of_means": float(students.mean() / teachers.mean()),
        "worst": float(ratios.min()),
    }
    by_set = {
        name: {"ratio": float(ratio)} | _interval(draws)
        for name, ratio, draws in zip(members, ratios, resampled, strict=True)
    }
    return overall | _interval(np.mean(resampled, axis=0)), by_set


def bootstrap_means(paired: Paired, samples: int, seed: int) -> dict[str, np.ndarray]:
    """Means of student and teacher, `(2, samples)` by data set, over resamplings of its queries, drawn together."""
    generator = np.random.default_rng(seed)
    resampled = {}
    for name, (student, teacher) in paired.items():
        means = resampled_means(np.stack([student, teacher], axis=1), samples, generator).T
        resampled[name] = np.where(means[1] > 0, means, np.array([[student.mean()], [teacher.mean()]]))
    return resampled


def _interval(values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return {"ci95_low": float(low), "ci95_high": float(high)}


def compare(student: np.ndarray, teacher: np.ndarray) -> dict[str, float]:
    """Paired two-sided t-test over queries, and the queries that the student wins, ties and loses."""
    difference = student - teacher
    counts = {"wins": difference > 0, "ties": difference == 0, "losses": difference < 0}
    return {"p_value": p_value([difference])} | {name: int(count.sum()) for name, count in counts.items()}


def is_gain(difference: float, p_value: float) -> bool:
    """Whether a mean difference is above 0, and significantly so at 5 %."""
    return difference > 0 and not is_chance(p_value)


def is_chance(p_value: float) -> bool:
    """Whether chance explains a difference, at 5 %."""
    return p_value > 0.05


def p_value(differences: Sequence[np.ndarray], weights: Sequence[float] | None = None) -> float:
    """Two-sided t-test that the mean over data sets of the mean difference is 0; one array `(queries,)` a data set.

    `weights` of the data sets in that mean; None = alike. Each has its own variance, with the degrees of freedom of
    Welch and Satterthwaite; one of one query is left out. 1 where no query differs or no data set is left. Where all
    queries differ by the same amount no variance stands against it: 0, or 1 for fewer than FEWEST queries.
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
        return float(total == 0 or sum(map(len, differences)) < FEWEST)
    freedom = variances.sum() ** 2 / sum(
        variance**2 / (len(values) - 1) for variance, values in zip(variances, differences, strict=True)
    )
    return float(2 * stats.t.sf(abs(total) / np.sqrt(variances.sum()), freedom))


def figures(values: Mapping[str, np.ndarray], samples: int, seed: int) -> dict[str, Any]:
    """`queries`, `ndcg` by model and `retention` by model but the teacher, of nDCG@10 `(queries,)` by model.

    A retention is `ratio`, `ci95_low` and `ci95_high`: the ratio of the means, with the percentile bootstrap over
    queries, all models drawn together (Efron and Tibshirani 1993, ch. 13). None where the teacher has 0.
    """
    teacher, retained = values[TEACHER], {}
    compared = [model for model in values if model != TEACHER] if teacher.mean() > 0 else []
    if compared:
        resampled = resampled_means(np.stack([teacher, *(values[model] for model in compared)], axis=1), samples, seed)
        resampled = resampled[resampled[:, 0] > 0]  # of the rest no ratio is defined
        for column, model in enumerate(compared, start=1):
            ratio = float(values[model].mean() / teacher.mean())
            retained[model] = {"ratio": ratio} | _interval(resampled[:, column] / resampled[:, 0])
    ndcg = {model: float(scores.mean()) for model, scores in values.items()}
    return {"queries": len(teacher), "ndcg": ndcg, "retention": retained}


def bootstrap_p_value(difference: np.ndarray, samples: int, seed: int) -> float:
    """Two-sided paired bootstrap test that the mean of `(queries,)` differences is 0, by resampling them centred.

    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 16.4. 1 / (samples + 1) is the least there is.
    """
    mean = difference.mean()
    resampled = resampled_means(difference - mean, samples, seed)
    return float((1 + (np.abs(resampled) >= abs(mean) - 1e-12).sum()) / (samples + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: each is at most alpha where Holm's step-down procedure rejects at alpha (Holm 1979)."""
    adjusted, greatest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = greatest
    return adjusted


def significant(p_value: float) -> str:
    """A p-value as people read it."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


def of_one_spec(distill: Path, students: Sequence[str]) -> list[list[str]]:
    """Names of students that are one but for the seed, one a seed, by the reports in `distill`; of two and more."""
    groups: dict[str, dict[int, str]] = defaultdict(dict)
    for student in students:
        report = read_json(distill / student / "report.json")
        groups[str(report["spec"])].setdefault(report["seed"], student)
    return [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]


def spreads(retained: Mapping[str, Mapping[str, float]], groups: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of the retention of each group, by its first student; {} where nothing is judged."""
    by_student = {}
    for first, *others in groups if retained else ():
        values = np.array([retained[student]["mean_of_ratios"] for student in (first, *others)])
        by_student[first] = {"others": others, "mean": float(values.mean()), "sd": float(values.std(ddof=1))}
    return by_student


def seed_lines(metrics: Mapping[str, Any]) -> list[str]:
    """A line a group."""
    return [
        f"{', '.join([student, *row['others']])}: one student with {len(row['others']) + 1} seeds, mean retention"
        f" {row['mean']:.1%}, standard deviation {100 * row['sd']:.1f} points"
        for student, row in metrics["seeds"].items()
    ]
