"""python -m bench.gate [--retrain] [REPORTS]: how often the promotion gate is wrong, on real per-query differences.

For each pair of models of reports/per_query.parquet, and for 300 and 1,704 test queries, 1,000 evaluations are drawn
with replacement from the real queries, which are weighted so that the candidate's mean nDCG@10 is worse or better than
the champion's by exactly what the scenario says (exponential tilting: a drawn query keeps its two real values). Each
drawn evaluation is judged as `steps.promote` judges it. Writes bench/results/gate.json. `--retrain` (a minute more,
needs the outputs of `dvc repro`) adds the most common candidate: the champion's own student, distilled anew.
"""

import sys
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from scipy.optimize import brentq

from bench.machine import recording, write_record
from bench.tables.cells import Cell, distill_params, measured
from bench.tables.pipeline import open_pipeline
from pipeline.params import load_params
from steps.core.tables import read_table
from steps.promote.evidence import MEASURE
from steps.promote.params import Policy

DRAWS = 1000
QUERIES = (300, 1704)
POWER = 0.8
SEED = 7
RESULT = Path("bench/results/gate.json")


def read_values(reports: Path) -> tuple[str, dict[str, np.ndarray]]:
    """The first data set, and test nDCG@10 on it by model, `(queries,)` in one order of queries."""
    table = read_table(reports, "per_query")
    for column, value in {"split": "test", "measure": MEASURE}.items():
        table = table.filter(pc.equal(table[column], value))
    dataset = min(table["dataset"].to_pylist())
    table = table.filter(pc.equal(table["dataset"], dataset)).sort_by("query_id")
    models = sorted(set(table["model"].to_pylist()))
    return dataset, {model: table.filter(pc.equal(table["model"], model))["value"].to_numpy() for model in models}


def retrained(student: str) -> dict[str, np.ndarray]:
    """Test nDCG@10 of two distillations of one student that differ in their seed, over the exact index."""
    pipeline = open_pipeline(Path())
    params = pipeline.params
    described = params.student[student].model_dump()
    repeats = {part: times for part, times in params.repeats.items() if times > 0}
    values = {}
    for name, seed in ((student, params.seed), (f"{student} retrained", params.seed + 1)):
        cell = Cell(distill_params(params, described, repeats, params.validation_texts, seed))
        scores = measured(cell, pipeline)[0]["scores"]["0"]["test"]
        values[name] = np.array(scores[min(scores)])
    return values


def tilted(candidate: np.ndarray, champion: np.ndarray, change: float) -> np.ndarray:
    """Chances of the queries, near to equal, under which mean(candidate) is (1 + change) mean(champion)."""
    gap = candidate - (1 + change) * champion

    def chances(tilt: float) -> np.ndarray:
        weights = np.exp(tilt * (gap - gap.max() if tilt > 0 else gap - gap.min()))
        return weights / weights.sum()

    return chances(brentq(lambda tilt: float(chances(tilt) @ gap), -50, 50))


def accepted(candidate: np.ndarray, champion: np.ndarray, change: float, queries: int, policy: Policy) -> float:
    """Share of the drawn evaluations on which the gate finds the candidate no worse."""
    chances = tilted(candidate, champion, change)
    rows = np.random.default_rng(SEED).choice(len(candidate), (queries, DRAWS), p=chances)
    bounds = policy.lower_bound(candidate[rows], champion[rows])
    return float((bounds >= 0).mean())


def measure(values: dict[str, np.ndarray], policy: Policy) -> list[dict[str, Any]]:
    """Shares accepted for every ordered pair of models, size and true change."""
    changes = {"worse_1_percent": -0.01, "at_the_margin": -policy.margin, "equal": 0.0, "better_1_percent": 0.01}
    rows = []
    for champion, candidate in permutations([model for model in values if not model.endswith("bm25")], 2):
        deviation = float(np.std(values[candidate] - values[champion]))
        row: dict[str, Any] = {"champion": champion, "candidate": candidate, "deviation": round(deviation, 4)}
        for queries in QUERIES:
            row[str(queries)] = {
                name: accepted(values[candidate], values[champion], change, queries, policy)
                for name, change in changes.items()
            }
        rows.append(row)
        print(f"{champion:>8} <- {candidate:<8} {row}", file=sys.stderr)
    return rows


def summarised(shares: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Least, mean and greatest share accepted over the pairs, by true change; `enough`: pairs with power of 80 %."""
    summary = {
        change: {
            "least": min(row[change] for row in shares),
            "mean": round(float(np.mean([row[change] for row in shares])), 4),
            "greatest": max(row[change] for row in shares),
        }
        for change in shares[0]
    }
    summary["better_1_percent"]["enough"] = sum(row["better_1_percent"] >= POWER for row in shares)
    return summary


def main() -> None:
    started = time.perf_counter()
    folders = [word for word in sys.argv[1:] if word != "--retrain"]
    dataset, values = read_values(Path(folders[0]) if folders else Path("reports"))
    policy = load_params().promote.policy
    rows = measure(values, policy)
    again = measure(retrained("static"), policy) if "--retrain" in sys.argv else []
    sampling_error = 1.645 * float(np.sqrt(0.05 * 0.95 / DRAWS))
    summary = {str(queries): summarised([row[str(queries)] for row in rows]) for queries in QUERIES}
    document = {
        "dataset": dataset,
        "test_queries": len(next(iter(values.values()))),
        "draws": DRAWS,
        "seed": SEED,
        "policy": policy.model_dump(include={"margin", "confidence", "resamples", "seed"}),
        "allowed_false_accepts": round(1 - policy.confidence + sampling_error, 4),
        "summary": summary,
        "pairs": rows,
        "retrained": again,
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_record(RESULT, document)
    for queries, by_change in summary.items():
        for change, shares in by_change.items():
            spread = f"{shares['least']:6.1%} to {shares['greatest']:6.1%}, mean {shares['mean']:6.1%}"
            print(f"{queries:>5} queries, {change:16} accepted {spread} over {len(rows)} pairs")
        enough = by_change["better_1_percent"]["enough"]
        print(f"{queries:>5} queries: power of {POWER:.0%} on {enough} of {len(rows)} pairs")


if __name__ == "__main__":
    recording(main)
