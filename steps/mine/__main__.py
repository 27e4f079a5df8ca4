"""python -m steps.mine --signal click"""

from pathlib import Path

from steps.core.params import load_rankers
from steps.frame.self_check import step_parser
from steps.frame.stage import stage_main
from steps.mine.params import MineParams
from steps.tracking.runs import Run

FOLDER = Path("data/mine")
_BEFORE = {"click": None, "judged": FOLDER / "click", "relevance": FOLDER / "judged"}


def main() -> None:
    """Mine one signal."""
    parser = step_parser("mine", __doc__)
    parser.add_argument("--signal", required=True, choices=list(_BEFORE))
    signal = parser.parse_args().signal

    def body(params: MineParams, run: Run) -> None:
        from steps.mine.run import run as mine

        input_folders: list[Path] = []
        if signal == "judged":
            input_folders = sorted(path.parent for path in Path("data/candidates").glob("*/candidates.parquet"))
        elif signal == "relevance":  # by name: a ranker that is gone may have left its scores
            input_folders = [Path("data/rank") / name for name in load_rankers()]
        mine(
            signal=signal,
            ingest=Path("data/ingest"),
            input_folders=input_folders,
            earlier=_BEFORE[signal],
            output=FOLDER / signal,
            params=params,
            run=run,
        )

    stage_main("mine", MineParams, body, cell=signal)


if __name__ == "__main__":
    main()
