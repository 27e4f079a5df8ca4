"""python -m steps.distill --student 2l"""

from pathlib import Path

from slimtower.common.errors import guarded
from steps.core.params import load_index_teacher
from steps.distill.params import DistillParams
from steps.frame.self_check import cell_argument
from steps.tracking.runs import Run
from steps.training.torchrun import SharedStage


def main() -> None:
    """Distil one student."""
    student = cell_argument("distill", __doc__, "--student", "distill.student")

    def body(params: DistillParams, run: Run) -> None:
        from steps.distill.run import run as distill

        distill(
            student=student,
            ingest=Path("data/ingest"),
            mine=Path("data/mine/relevance"),
            embed=Path("data/embed"),
            score=Path("data/score"),
            teach=Path("models/teach") / load_index_teacher(),
            output=Path("models/distill") / student,
            params=params,
            run=run,
        )

    SharedStage("distill", DistillParams, body, cell=student).main()


if __name__ == "__main__":
    guarded(main)
