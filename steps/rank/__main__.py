"""python -m steps.rank --ranker cross"""

from pathlib import Path

from slimtower.common.errors import guarded
from steps.frame.self_check import cell_argument
from steps.frame.stage import stage_main
from steps.rank.params import RankParams
from steps.tracking.runs import Run


def main() -> None:
    """Train the ranker, and let it score."""
    ranker = cell_argument("rank", __doc__, "--ranker", "rank.ranker")

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
