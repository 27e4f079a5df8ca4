"""Data sets that count as one, such as CQADupStack's twelve forums: their mean is one data set's figure (BEIR)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def units(datasets: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Each data set under its own name, but those called `<name>-...` together under that name; in order."""
    groups: dict[str, list[str]] = {}
    for dataset in datasets:
        groups.setdefault(next((name for name in names if dataset.startswith(f"{name}-")), dataset), []).append(dataset)
    return groups


def weights(datasets: Sequence[str], names: Sequence[str]) -> list[float]:
    """Of each data set in a mean over data sets: those that count as one share the weight of one."""
    members = units(datasets, names)
    share = {dataset: 1 / len(group) / len(members) for group in members.values() for dataset in group}
    return [share[dataset] for dataset in datasets]


def joint_means(
    sets: Mapping[str, Mapping[str, Mapping[str, float]]], names: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """`[name][model][measure]` of data sets that count as one, from `[data set][model][measure]`: the plain means."""
    means: dict[str, dict[str, dict[str, float]]] = {}
    for name, members in units(sets, names).items():
        if members != [name]:
            first = sets[members[0]]
            means[name] = {
                model: {
                    measure: float(np.mean([sets[member][model][measure] for member in members]))
                    for measure in values
                    if all(measure in sets[member][model] for member in members)
                }
                for model, values in first.items()
            }
    return means


def counted_sets(metrics: Mapping[str, Any], part: str = "datasets") -> dict[str, Any]:
    """`datasets` or `datasets_dev` of metrics.json as a mean counts them: what counts as one in place of its parts."""
    joint = metrics.get("as_one" if part == "datasets" else "as_one_dev", {})
    counted_names = units(metrics[part], list(joint))
    return {name: joint[name] if name in joint else metrics[part][name] for name in counted_names}
