"""python -m steps.release --student 2l"""

from pathlib import Path

from slimtower.common.errors import guarded
from steps.core.params import load_ignore_identical_ids
from steps.frame.self_check import cell_argument
from steps.frame.stage import stage_main
from steps.release.params import ReleaseParams
from steps.tracking.runs import Run


def main() -> None:
    """Release one student."""
    student = cell_argument("release", __doc__, "--student", "distill.student")

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
