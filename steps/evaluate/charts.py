"""The few figures of an evaluation that MLflow's pages show; metrics.json, an artefact of the run, has all."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steps.core.measures import NDCG
from steps.evaluate.gains import fused_name
from steps.evaluate.params import HEADLINE
from steps.evaluate.served import fusing
from steps.evaluate.systems import TEACHER
from steps.retrieval.dataset_groups import counted_sets


def main_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """HEADLINE of the chosen student as its release serves it; what was not measured is left out.

    nDCG@10 is the mean over data sets, `p50_ms` is text to hits, and `times_as_fast` compares it with the teacher's.
    """
    student = metrics["choice"]["student"]
    if student not in metrics["served"]:
        return {}
    served = metrics["served"]
    figures = {"p50_ms": served[student]["p50_ms"]}
    if TEACHER in served:
        figures["times_as_fast"] = served[TEACHER]["p50_ms"] / served[student]["p50_ms"]
    if quality := counted_sets(metrics):
        fused = set(fusing(metrics, student))
        scores = [
            sets[fused_name(student) if dataset in fused and fused_name(student) in sets else student][NDCG]
            for dataset, sets in quality.items()
        ]
        figures["nDCG_at_10"] = float(np.mean(scores))
        figures["teacher_nDCG_at_10"] = float(np.mean([sets[TEACHER][NDCG] for sets in quality.values()]))
        figures["retention"] = served[student]["mean_of_ratios"]
    return {name: figures[name] for name in HEADLINE if name in figures}


def charts(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The headline, and beside it groups of charts: nDCG@10 of each system, retention and latency of each student."""
    quality = counted_sets(metrics)
    systems = sorted({name for sets in quality.values() for name in sets})
    figures = {
        f"nDCG_at_10/{name}": float(np.mean([sets[name][NDCG] for sets in quality.values()]))
        for name in systems
        if all(name in sets for sets in quality.values())
    }
    for name, served in metrics["served"].items():
        figures |= {f"p50_ms/{name}": served["p50_ms"]}
        figures |= {f"retention/{name}": served["mean_of_ratios"]} if "mean_of_ratios" in served else {}
    return main_figures(metrics) | {name.replace("+", " with "): value for name, value in figures.items()}
