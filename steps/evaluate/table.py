"""The measured results as a table for a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import read_json

COLUMNS = ("nDCG@10", "MRR@10", "Recall@100")


def results_table(reports: Path) -> str:
    """Quality, retention, latency and size of every model on every data set; UserError without metrics.json."""
    path = reports / "metrics.json"
    if not path.is_file():
        raise UserError(f"{path}: not found; run `make demo` first")
    metrics: dict[str, Any] = read_json(path)
    lines = []
    for dataset, models in metrics["datasets"].items():
        teacher = models["teacher"]["nDCG@10"]
        heads = "".join(f"{name:>12}" for name in (*COLUMNS, "kept %", "p50 ms", "queries/s", "MB"))
        lines += [f"{dataset} (test queries)", f"{'':12}{heads}"]
        for model in sorted(models, key=lambda name: -models[name]["nDCG@10"]):
            speed, size = metrics["latency"].get(model), metrics["sizes"].get(model)
            cells = [f"{models[model][measure]:12.4f}" for measure in COLUMNS]
            cells.append(f"{100 * models[model]['nDCG@10'] / teacher:12.1f}")
            cells += [f"{speed['p50_ms']:12.2f}", f"{speed['qps']:12.0f}"] if speed else [f"{'-':>12}"] * 2
            cells.append(f"{size['bytes'] / 1e6:12.1f}" if size else f"{'-':>12}")
            lines.append(f"{model:12}{''.join(cells)}")
    lines += choice_lines(metrics)
    lines.append(f'report: {reports / "report.html"}   runs: make mlflow   search: make search Q="..."')
    return "\n".join(lines)


def choice_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The choice within the latency budget, its runner-up and who was left out, a line each."""
    choice = metrics["choice"]
    budget, over = choice["budget_ms"], choice["over_budget"]
    if choice["student"] is None:
        fastest = min(over, key=lambda student: (over[student], student))
        return [
            f"Choice: none, no student is within distill.budget_ms ({budget:g}): the fastest, {fastest},"
            f" needs {over[fastest]:.3g} ms a query"
        ]
    count = len(metrics["retention"]) - len(over)
    best = f"the best of {count}" if count > 1 else "the only one"
    within = f" within {budget:g} ms a query" if budget else ""
    split = "dev" if metrics["datasets_dev"] else "test, as there are no dev queries"
    lines = [
        f"Choice: {choice['student']}, {best}{within}: nDCG@10 {choice['ndcg']:.4f} on {split},"
        f" {choice['p50_ms']:.3g} ms"
    ]
    if choice["runner_up"] is not None:
        lines.append(
            f"Runner-up: {choice['runner_up']}, {choice['runner_up_ndcg']:.4f}, {choice['runner_up_p50_ms']:.3g} ms;"
            f" {choice['difference']:.4f} less (paired t-test, p {significant(choice['p_value'])})"
        )
    if over:
        slower = ", ".join(f"{student} ({over[student]:.3g} ms)" for student in sorted(over, key=over.__getitem__))
        lines.append(f"Over the budget: {slower}")
    return lines


def significant(p_value: float) -> str:
    """A p-value as people read it."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"
