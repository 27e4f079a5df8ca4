"""python -m steps.release --student 2l"""

from pathlib import Path

from slimtower.common.errors import guarded
from slimtower.common.settings import checked_name
from steps.core.params import load_ignore_identical_ids
from steps.frame.self_check import step_parser
from steps.frame.stage import stage_main
from steps.release.params import ReleaseParams
from steps.tracking.runs import Run


def main() -> None:
    """Release one student."""
    parser = step_parser("release", __doc__)
    parser.add_argument("--student", required=True, help="a name in distill.student")
    student = checked_name("--student", parser.parse_args().student)  # it becomes a folder, which is replaced

    def body(params: ReleaseParams, run: Run) -> None:
        from steps.release.run import run as release

        release(
            student=student,
            distill=Path("models/distill") / student,
            index=Path("models/index"),
            ingest=Path("data/ingest"),
            output=Path("models/release") / student,
            params=params,
            run=run,
            ignore_identical_ids=load_ignore_identical_ids(),
        )

    stage_main("release", ReleaseParams, body, cell=student)


if __name__ == "__main__":
    guarded(main)
