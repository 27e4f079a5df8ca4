"""python -m steps.score --teacher other"""

from pathlib import Path

from slimtower.common.errors import guarded
from steps.frame.self_check import cell_argument
from steps.frame.stage import stage_main
from steps.score.params import ScoreParams
from steps.tracking.runs import Run


def main() -> None:
    """Let one teacher score."""
    teacher = cell_argument("score", __doc__, "--teacher", "score.teachers")

    def body(params: ScoreParams, run: Run) -> None:
        from steps.score.run import run as score

        score(
            ingest=Path("data/ingest"),
            mine=Path("data/mine/relevance"),
            embed=Path("data/embed"),
            teach=Path("models/teach") / teacher,
            output=Path("data/score") / teacher,
            params=params,
            run=run,
        )

    stage_main("score", ScoreParams, body, cell=teacher)


if __name__ == "__main__":
    guarded(main)
