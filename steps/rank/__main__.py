"""python -m steps.rank --ranker cross"""

from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.settings import checked_name
from steps.frame.self_check import step_parser
from steps.frame.stage import stage_main
from steps.rank.params import RankParams
from steps.tracking.runs import Run


def main() -> None:
    """Train the ranker, and let it score."""
    parser = step_parser("rank", __doc__)
    parser.add_argument("--ranker", required=True, help="a name in rank.ranker")
    ranker = checked_name("--ranker", parser.parse_args().ranker)  # it becomes a folder, which is replaced

    def body(params: RankParams, run: Run) -> None:
        from steps.rank.run import run as rank

        rank(
            ingest=Path("data/ingest"),
            candidates=Path("data/candidates"),
            mine=Path("data/mine/judged"),
            params=params.described(ranker),
            output=Path("data/rank") / ranker,
            teach=Path("models/teach") / ranker,
            run=run,
        )

    stage_main("rank", RankParams, body, cell=ranker)


if __name__ == "__main__":
    guarded(main)
