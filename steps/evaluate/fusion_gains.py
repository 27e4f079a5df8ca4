"""What fusion with BM25 brings: each fused system on test against its dense one and against BM25, and the verdict."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steps.evaluate.results import Result
from steps.evaluate.retention import compare
from steps.evaluate.significance import significant
from steps.evaluate.systems import BM25

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
