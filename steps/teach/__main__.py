"""python -m steps.teach --teacher dense"""

from pathlib import Path

from slimtower.common.errors import guarded
from steps.frame.self_check import cell_argument
from steps.teach.params import TeachParams
from steps.tracking.runs import Run
from steps.training.torchrun import SharedStage


def main() -> None:
    """Train one teacher."""
    teacher = cell_argument("teach", __doc__, "--teacher", "teach.teacher")

    def body(params: TeachParams, run: Run) -> None:
        from steps.teach.run import run as teach

        teach(
            ingest=Path("data/ingest"),
            mine=Path("data/mine/relevance"),
            params=params.described(teacher),
            output=Path("models/teach") / teacher,
            run=run,
            rankers=Path("data/rank"),
        )

    def shares(params: TeachParams) -> bool:
        return params.described(teacher).trains_in_processes

    SharedStage("teach", TeachParams, body, teacher, shares).main()


if __name__ == "__main__":
    guarded(main)
