"""python -m steps.candidates"""

from pathlib import Path

from steps.candidates.params import CandidatesParams
from steps.frame.stage import stage_main
from steps.tracking.runs import Run


def main() -> None:
    """Search."""

    def body(params: CandidatesParams, run: Run) -> None:
        from steps.candidates.run import run as candidates

        candidates(Path("data/ingest"), Path("data/candidates"), params, run)

    stage_main("candidates", CandidatesParams, body)


if __name__ == "__main__":
    main()
