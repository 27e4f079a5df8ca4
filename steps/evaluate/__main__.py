"""`python -m steps.evaluate`: measure every model of params.yaml and write `reports/`; `--table` prints them."""

import contextlib
import sys
from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.files import cache_root, sha256_file, staged_file
from steps.core.params import load_index_teacher, load_students
from steps.core.progress import Bar
from steps.evaluate.params import EvaluateParams
from steps.frame.stage import stage_main
from steps.retrieval.noninferiority import load_noninferiority
from steps.tracking.runs import Run


def body(params: EvaluateParams, run: Run) -> None:
    """Evaluate the students of params.yaml, never those that happen to lie in a folder."""
    from steps.evaluate.run import run as evaluate

    with Bar(None, "evaluate"):  # one line for its dozens of short passes
        evaluate(
            ingest=Path("data/ingest"),
            mine=Path("data/mine/relevance"),
            embed=Path("data/embed"),
            generate=Path("data/generate"),
            teach=Path("models/teach") / load_index_teacher(),
            distill=Path("models/distill"),
            releases={name: Path("models/release") / name for name in load_students()},
            output=Path("reports"),
            params=params,
            rule=load_noninferiority(),
            run=run,
        )


def print_table() -> None:
    """Print the results of the last evaluation. A table that was printed before is kept: making it imports torch."""
    metrics = Path("reports/metrics.json")
    printed = cache_root() / "tables" / f"{sha256_file(metrics)}.txt" if metrics.is_file() else None
    if printed is not None and printed.is_file() and printed.stat().st_size:
        print(printed.read_text(encoding="utf-8"))
        return
    from steps.evaluate.summary import results_table

    table = results_table(metrics.parent)
    print(table)
    if printed is not None:
        with contextlib.suppress(OSError), staged_file(printed) as staging:
            staging.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    if "--table" in sys.argv[1:]:
        guarded(print_table)
    else:
        stage_main("evaluate", EvaluateParams, body)
