"""What the run that made the releases left for the page: queries to try, the report, and the teacher's name."""

from pathlib import Path

import pyarrow.compute as pc

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.parquet import read_columns
from slimtower.service.systems import Serving
from slimtower.serving.examples import answered_examples

EXAMPLES = 3
_LONGEST = 60  # characters of an example
_REPORT = "reports/report.html"


def report_of(project: Path | None) -> Path | None:
    """The report of a project's run; None if it was not evaluated."""
    path = project / _REPORT if project else None
    return path if path and path.is_file() else None


def example_queries(serving: Serving, project: Path | None) -> dict[str, list[str]]:
    """Queries to try, of each data set of the default student: those of the embedded data that every student answers.

    For other data, dev queries of the run for which teacher and students have a relevant document as their first hit.
    """
    release = serving.student("").release
    examples = {}
    for dataset in release.datasets:
        answered = [answered_examples(release, dataset)]
        answered += [
            answered_examples(served.release, dataset)
            for served in serving.students.values()
            if dataset in served.release.datasets
        ]
        shared = [query for query in answered[0] if all(query in answers for answers in answered)]
        examples[dataset] = shared or (_agreed_queries(project, dataset) if project else [])
    return {dataset: queries[:EXAMPLES] for dataset, queries in examples.items() if queries}


def _agreed_queries(project: Path, dataset: str) -> list[str]:
    """Dev queries whose first hit is relevant in every dense search that the evaluation measured; short ones first."""
    only = {"dataset": dataset, "split": "dev", "measure": "RR@10"}
    filters = [(name, "==", value) for name, value in only.items()] + [("model", "!=", "bm25")]
    try:
        rows = read_columns(project / "reports/per_query.parquet", "query_id", "value", filters=filters)
        queries = read_columns(project / "data/ingest/queries.parquet", "query_id", "text")
    except (UserError, OSError):
        return []
    worst = rows.group_by("query_id").aggregate([("value", "min")]).filter(pc.field("value_min") == 1.0)
    agreed = queries.filter(pc.is_in(queries["query_id"], worst["query_id"].combine_chunks()))["text"].to_pylist()
    texts = [text for text in agreed if len(text) <= _LONGEST]
    return sorted(texts, key=lambda text: (abs(len(text.split()) - 4), text))


def teacher_base(tower: Path) -> str:
    """The model that a teacher was trained from, by its own name; "" if its report does not say."""
    try:
        report = read_json(tower.parent / "report.json")
    except (UserError, OSError):
        return ""
    base = report.get("base") if isinstance(report, dict) else None
    return Path(base).name if isinstance(base, str) else ""
