"""python -m steps.score --teacher other"""

from pathlib import Path

from steps.core.errors import guarded
from steps.core.params import checked_name
from steps.core.self_check import step_parser
from steps.core.stage import stage_main
from steps.core.tracking import Run
from steps.score.params import ScoreParams


def main() -> None:
    """Let one teacher score."""
    parser = step_parser("score", __doc__)
    parser.add_argument("--teacher", required=True, help="a name in score.teachers")
    teacher = checked_name("--teacher", parser.parse_args().teacher)  # it becomes a folder, which is replaced

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
