"""The frontier: retention against the latency of one query, as a table."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtower.common.files import staged_file
from steps.evaluate.latency import Latency
from steps.evaluate.metrics import Metrics
from steps.evaluate.retention import Retention
from steps.retrieval.dataset_groups import counted_sets


@dataclass(frozen=True)
class Point:
    """A model with an encoder: p50 in ms, retention as a ratio with its interval, mean test nDCG@10 over data sets.

    All but the first are NaN where nothing is judged.
    """

    model: str
    p50_ms: float
    retention: float
    ci95_low: float
    ci95_high: float
    ndcg: float


def frontier(latencies: Mapping[str, Latency], retained: Mapping[str, Retention], metrics: Metrics) -> list[Point]:
    """The teacher (retention 1 by definition) and the students, fastest first."""
    points = []
    for model, latency in latencies.items():
        figures = retained.get(model)
        ratio = low = high = 1.0 if metrics["datasets"] else math.nan
        if figures:
            ratio, low, high = figures.mean_of_ratios, figures.ci95_low, figures.ci95_high
        points.append(Point(model, latency.p50_ms, ratio, low, high, mean_ndcg(metrics, model)))
    return sorted(points, key=lambda point: (point.p50_ms, point.model))


def mean_ndcg(metrics: Mapping[str, Any], model: str) -> float:
    """Mean of a model's test nDCG@10 over data sets; NaN where none is judged."""
    values = [models[model]["nDCG@10"] for models in counted_sets(metrics).values()]
    return float(sum(values) / len(values)) if values else math.nan


def write_frontier(path: Path, points: Sequence[Point]) -> None:
    """Write `model,p50_ms,retention,ndcg`, one row a model, for `dvc plots`; what is NaN stays empty."""
    with staged_file(path) as staging, staging.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "p50_ms", "retention", "ndcg"])
        for point in points:
            quality = ["" if math.isnan(value) else f"{value:.6f}" for value in (point.retention, point.ndcg)]
            writer.writerow([point.model, f"{point.p50_ms:.4f}", *quality])
