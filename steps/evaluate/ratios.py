"""Several models on the same queries: means, and each one's share of the teacher's with a bootstrap interval."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from steps.evaluate.systems import TEACHER
from steps.retrieval.noninferiority import resampled_means


def figures(values: Mapping[str, np.ndarray], samples: int, seed: int) -> dict[str, Any]:
    """`queries`, `ndcg` by model and `retention` by model but the teacher, of nDCG@10 `(queries,)` by model.

    A retention is `ratio`, `ci95_low` and `ci95_high`: the ratio of the means, with the percentile bootstrap over
    queries, all models drawn together (Efron and Tibshirani 1993, ch. 13). Without any where the teacher has 0.
    """
    teacher = values[TEACHER]
    named: dict[str, Any] = {
        "queries": len(teacher),
        "ndcg": {model: float(scores.mean()) for model, scores in values.items()},
        "retention": {},
    }
    if teacher.mean() <= 0:
        return named
    compared = [model for model in values if model != TEACHER]
    resampled = resampled_means(np.stack([teacher, *(values[model] for model in compared)], axis=1), samples, seed)
    resampled = resampled[resampled[:, 0] > 0]  # of the rest no ratio is defined
    for column, model in enumerate(compared, start=1):
        low, high = np.quantile(resampled[:, column] / resampled[:, 0], [0.025, 0.975])
        ratio = float(values[model].mean() / teacher.mean())
        named["retention"][model] = {"ratio": ratio, "ci95_low": float(low), "ci95_high": float(high)}
    return named
