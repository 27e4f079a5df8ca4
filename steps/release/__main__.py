"""python -m steps.release --student 2l"""

from pathlib import Path

from steps.core.params import Params
from steps.core.self_check import step_parser
from steps.core.stage import stage_main
from steps.core.tracking import Run


def main() -> None:
    """Release one student."""
    parser = step_parser("release", __doc__)
    parser.add_argument("--student", required=True, help="a name in distill.student")
    student = parser.parse_args().student

    def body(params: Params, run: Run) -> None:
        params.distill.described(student)  # the name becomes a folder, which is replaced
        from steps.release.run import run as release

        release(
            student=student,
            distill=Path("models/distill") / student,
            index=Path("models/index"),
            ingest=Path("data/ingest"),
            output=Path("models/release") / student,
            params=params.release,
            run=run,
        )

    stage_main("release", body, cell=student)


if __name__ == "__main__":
    main()
