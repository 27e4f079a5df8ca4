"""Students that differ in their seed alone: how far their retention is spread."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import read_json


def of_one_spec(distill: Path, students: Sequence[str]) -> list[list[str]]:
    """Names of students that are one but for the seed, one a seed, by the reports in `distill`; of two and more."""
    groups: dict[str, dict[Any, str]] = defaultdict(dict)
    for student in students:
        report = read_json(distill / student / "report.json")
        groups[str(report.get("spec", student))].setdefault(report.get("seed", student), student)
    return [list(by_seed.values()) for by_seed in groups.values() if len(by_seed) > 1]


def spreads(retained: Mapping[str, Mapping[str, float]], groups: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of the retention of each group, by its first student; {} where nothing is judged."""
    by_student = {}
    for group in groups if retained else ():
        values = np.array([retained[student]["mean_of_ratios"] for student in group])
        by_student[group[0]] = {
            "others": list(group[1:]),
            "mean": float(values.mean()),
            "sd": float(values.std(ddof=1)),
        }
    return by_student


def seed_lines(metrics: Mapping[str, Any]) -> list[str]:
    """A line a group."""
    return [
        f"{', '.join([student, *row['others']])}: one student with {len(row['others']) + 1} seeds, mean retention"
        f" {row['mean']:.1%}, standard deviation {100 * row['sd']:.1f} points"
        for student, row in metrics["seeds"].items()
    ]
