"""python -m steps.candidates"""

from pathlib import Path

from steps.candidates.params import CandidatesParams
from steps.frame.stage import stage_main
from steps.tracking.runs import Run


def body(params: CandidatesParams, run: Run) -> None:
    """Search with the queries of ingest."""
    from steps.candidates.run import run as candidates

    candidates(Path("data/ingest"), Path("data/candidates"), params, run)


if __name__ == "__main__":
    stage_main("candidates", CandidatesParams, body)
