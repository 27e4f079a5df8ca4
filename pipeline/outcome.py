"""python -m pipeline.outcome [recipes/x.yaml]: the results of a run as a table, and the commands that come next."""

import subprocess
import sys
from pathlib import Path

from slimtower.common.errors import UserError, guarded
from slimtower.common.files import read_json
from slimtower.serving.choice import run_root
from slimtower.serving.display import EXAMPLE

LOSES_TOO_MUCH = "   (refuses such students as a first champion: docs/tutorial.md#5-a-champion)"


def show(recipe: str) -> None:
    """Print what a recipe's last run measured ("": the demo) and what to do with it; UserError if that is nothing."""
    root = run_root(recipe)
    if code := subprocess.run([sys.executable, "-m", "steps.evaluate", "--table"], cwd=root).returncode:
        raise SystemExit(code)
    print("\n".join(next_commands(recipe)), flush=True)


def next_commands(recipe: str) -> list[str]:
    """A line each: where the report lies, and how to search, to promote and to see the runs."""
    report = f"reports/{Path(recipe).stem}.report.html" if recipe else "reports/report.html"
    of = f" RECIPE={recipe}" if recipe else ""
    rows = {
        "report": report,
        "search page": f"make serve{of}",
        "search here": f'make search Q="{"..." if recipe else EXAMPLE}"{of}',
        "let it serve": f"make promote{of}" + ("" if _may_be_promoted(run_root(recipe)) else LOSES_TOO_MUCH),
        "all runs": "make mlflow",
    }
    return ["", *(f"{name:12}  {value}" for name, value in rows.items())]


def _may_be_promoted(root: Path) -> bool:
    """Whether some student loses not surely too much on any data set; without judged queries the gate refuses all."""
    metrics = root / "reports/metrics.json"
    if not metrics.is_file():
        return True  # nothing says that it would be refused
    verdict = read_json(metrics).get("verdict", {}).values()
    students = {student for row in verdict for student in row}
    return any(all(row[student]["answer"] != "no" for row in verdict if student in row) for student in students)


def main() -> None:
    if len(sys.argv) > 2:
        raise UserError(f"usage: {(__doc__ or '').split(':')[0]}")
    show(sys.argv[1] if len(sys.argv) == 2 else "")


if __name__ == "__main__":
    guarded(main)
