"""python -m steps.score --teacher other"""

from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.settings import checked_name
from steps.frame.self_check import step_parser
from steps.frame.stage import stage_main
from steps.score.params import ScoreParams
from steps.tracking.runs import Run


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
