"""python -m steps.index"""

from pathlib import Path

from steps.core.params import load_index_teacher
from steps.frame.stage import stage_main
from steps.index.params import IndexParams
from steps.tracking.runs import Run


def body(params: IndexParams, run: Run) -> None:
    """Index what `embed` wrote."""
    from steps.index.run import run as index

    index(
        ingest=Path("data/ingest"),
        embed=Path("data/embed"),
        teach=Path("models/teach") / load_index_teacher(),
        output=Path("models/index"),
        params=params,
        run=run,
    )


if __name__ == "__main__":
    stage_main("index", IndexParams, body)
