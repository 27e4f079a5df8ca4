"""python -m steps.mine --signal click"""

from pathlib import Path

from steps.core.self_check import step_parser
from steps.core.stage import stage_main
from steps.core.tracking import Run
from steps.mine.params import MineParams

FOLDER = Path("data/mine")


def main() -> None:
    """Mine one signal."""
    parser = step_parser("mine", __doc__)
    parser.add_argument("--signal", required=True, choices=["click", "relevance"])
    signal = parser.parse_args().signal

    def body(params: MineParams, run: Run) -> None:
        from steps.mine.run import run as mine

        mine(
            signal=signal,
            ingest=Path("data/ingest"),
            clicks=FOLDER / "click",
            output=FOLDER / signal,
            params=params,
            run=run,
        )

    stage_main("mine", MineParams, body, cell=signal)


if __name__ == "__main__":
    main()
