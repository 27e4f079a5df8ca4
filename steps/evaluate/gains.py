"""What training the teacher brought: its nDCG@10 against that of every tower that it was before, query by query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steps.evaluate.results import Result
from steps.evaluate.retention import Comparison, compare, p_value
from steps.retrieval.dataset_groups import weights

_SPLITS = ("dev", "test")  # the first that there is says whether training helped: knobs are chosen on dev


@dataclass(frozen=True)
class Gain:
    """The teacher against one tower on one data set: the mean difference, and the comparison, whose wins are its."""

    difference: float
    comparison: Comparison

    def as_dict(self) -> dict[str, float]:
        """Key of metrics.json -> value."""
        return {"difference": self.difference} | self.comparison.as_dict()


@dataclass(frozen=True)
class Gains:
    """The teacher against every earlier tower: `of_split[split][data set][tower]`.

    `overall[tower]` is the mean over data sets of the mean difference, and its p-value (`retention.p_value`): on dev,
    or on test where there are no dev queries.
    """

    of_split: Mapping[str, Mapping[str, Mapping[str, Gain]]]
    overall: Mapping[str, tuple[float, float]]


def gains(teacher: Result, earlier: Mapping[str, Result], as_one: Sequence[str] = ()) -> Gains:
    """Of results on the same judged sets; data sets named as in `as_one` count as one in `overall`."""
    splits = {
        split: {name: _paired(teacher.ndcg(split), tower.ndcg(split)) for name, tower in earlier.items()}
        for split in _SPLITS
    }
    decides = next((split for split in _SPLITS if teacher.of_split(split)), "")
    overall = {}
    for name, pairs in splits.get(decides, {}).items():
        differences = [theirs - before for theirs, before in pairs.values()]
        shares = weights(list(pairs), as_one)
        mean = float(np.average([values.mean() for values in differences], weights=shares))
        overall[name] = mean, p_value(differences, shares)
    return Gains(
        {
            split: {
                dataset: {name: _gain(*pairs[dataset]) for name, pairs in towers.items()}
                for dataset in next(iter(towers.values()), {})
            }
            for split, towers in splits.items()
        },
        overall,
    )


def _paired(
    teacher: Mapping[str, np.ndarray], tower: Mapping[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """nDCG@10 of the queries of each data set by both, `(queries,)`."""
    return {dataset: (values, tower[dataset]) for dataset, values in teacher.items()}


def _gain(teacher: np.ndarray, before: np.ndarray) -> Gain:
    return Gain(float((teacher - before).mean()), compare(teacher, before))
