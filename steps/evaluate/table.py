"""The measured results as a table for a terminal."""

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
    lines.append(f'report: {reports / "report.html"}   runs: make mlflow   search: make search Q="..."')
    return "\n".join(lines)
