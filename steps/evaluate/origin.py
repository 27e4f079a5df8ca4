"""Where the numbers of a report come from: commit, MLflow run and data."""

from pathlib import Path

from slimtower.common.errors import TransientError
from slimtower.common.files import read_json, sha256_file
from steps.core.tables import table_path
from steps.tracking.run_ids import git_commit
from steps.tracking.runs import Run

DIGITS = 12  # of a digest


def origin(ingest: Path, run: Run) -> list[tuple[str, str]]:
    """Name and value of each; digests are the first digits of a sha256. No run where MLflow knows of none."""
    try:
        run_id = str(getattr(run, "run_id", ""))
    except TransientError:
        run_id = ""
    datasets = read_json(ingest / "report.json").get("datasets", {})
    rows = [("commit", git_commit()), ("MLflow run of evaluate", run_id)]
    rows += [(f"corpus of {name}", str(entry.get("corpus_digest", ""))[:DIGITS]) for name, entry in datasets.items()]
    rows += [(name, sha256_file(table_path(ingest, name))[:DIGITS]) for name in ("queries", "qrels")]
    return [(name, value) for name, value in rows if value]
