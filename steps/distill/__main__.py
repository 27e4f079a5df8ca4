"""python -m steps.distill --student 2l"""

from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.settings import checked_name
from steps.core.params import load_index_teacher
from steps.distill.params import DistillParams
from steps.frame.self_check import step_parser
from steps.tracking.runs import Run
from steps.training.torchrun import SharedStage


def main() -> None:
    """Distil one student."""
    parser = step_parser("distill", __doc__)
    parser.add_argument("--student", required=True, help="a name in distill.student")
    student = checked_name("--student", parser.parse_args().student)  # it becomes a folder, which is replaced

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
