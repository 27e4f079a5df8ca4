"""What training brought the teacher, and what BM25 brings a dense system, query by query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steps.evaluate.comparing import Comparison, compare, p_value, significant
from steps.evaluate.measuring import Result
from steps.evaluate.systems import BM25
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


Figures = dict[str, Any]


def fusion_gains(results: Mapping[str, Result]) -> dict[str, dict[str, Figures]]:
    """`[data set][dense system]`: the figures of metrics.json, `fused`."""
    gains: dict[str, dict[str, Figures]] = {}
    for name, result in results.items():
        dense = name.removesuffix(f"+{BM25}")
        values = result.ndcg("test")
        for dataset, figures in result.fusions.items():
            against = {
                f"against_{baseline}": _against(values[dataset], results[system].ndcg("test")[dataset])
                for baseline, system in (("dense", dense), ("bm25", BM25))
                if dataset in values
            }
            gains.setdefault(dataset, {})[dense] = figures.as_dict() | against
    return gains


def fused_name(dense: str) -> str:
    """What the system is called that fuses a dense one with BM25."""
    return f"{dense}+{BM25}"


def fusion_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Whether fusion with BM25 wins, a line a data set and dense system."""
    return [_line(dataset, dense, row[dense]) for dataset, row in metrics["fused"].items() for dense in row]


def _line(dataset: str, dense: str, figures: Figures) -> str:
    dev, test = figures["dev"], figures.get("against_dense")
    start = f"{fused_name(dense)} on {dataset}{', as released' if figures['carried'] else ''}"
    if dev is None:
        verdict = "not compared on dev queries"
    else:
        finding = "better beyond chance" if dev["wins"] else "not shown to be better"
        verdict = (
            f"{finding} on {dev['queries']} dev queries, nDCG@10 {dev['dense']:.4f} to {dev['fused']:.4f}"
            f" (p {significant(dev['p_value'])})"
        )
    on_test = f"; {test['difference']:+.4f} on test (p {significant(test['p_value'])})" if test else ""
    return f"{start}: {verdict}{on_test}; {figures['told']}; {figures['p50_ms']:.3g} ms from text to hits"


def _against(fused: np.ndarray, baseline: np.ndarray) -> Figures:
    return {"difference": float((fused - baseline).mean())} | compare(fused, baseline).as_dict()
