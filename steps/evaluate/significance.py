"""Students against the teacher by every measure: paired t-test, paired bootstrap, and Holm over a family.

A family is what one measure compares: with the teacher every student, and what its release fuses with BM25, on every
data set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steps.core.measures import NDCG, UNCUT
from steps.evaluate.results import Result
from steps.evaluate.retention import p_value
from steps.retrieval.noninferiority import FEWEST, resampled_means


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
