"""Students that differ in their seed alone: how far their retention is spread."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import read_json


def of_one_spec(distill: Path, students: Sequence[str]) -> list[list[str]]:
    """Names of students that are one but for the seed, one a seed, by the reports in `distill`; of two and more."""
    found: dict[str, dict[Any, str]] = defaultdict(dict)
    for student in students:
        report = read_json(distill / student / "report.json")
        found[str(report.get("spec", student))].setdefault(report.get("seed", student), student)
    return [list(own.values()) for own in found.values() if len(own) > 1]


def spreads(retained: Mapping[str, Mapping[str, float]], groups: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation of the retention of each group, by its first student; {} where nothing is judged."""
    found = {}
    for own in groups if retained else ():
        values = np.array([retained[student]["mean_of_ratios"] for student in own])
        found[own[0]] = {"others": list(own[1:]), "mean": float(values.mean()), "sd": float(values.std(ddof=1))}
    return found


def seed_lines(metrics: Mapping[str, Any]) -> list[str]:
    """A line a group."""
    return [
        f"{', '.join([student, *row['others']])}: one student with {len(row['others']) + 1} seeds, mean retention"
        f" {row['mean']:.1%}, standard deviation {100 * row['sd']:.1f} points"
        for student, row in metrics["seeds"].items()
    ]
