"""A project's folder as promotion finds it: releases, an evaluation, and the dvc.lock that records both."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from slimtower.common.files import read_json, write_json
from steps.core.tables import read_table, table_from_rows, write_table
from steps.promote import run as commands
from steps.promote.dvc_lock import dvc_md5
from steps.promote.params import PromoteParams

INGEST, REPORTS, RELEASES = Path("data/ingest"), Path("reports"), Path("models/release")
PARAMS = {
    "name": "retriever",
    "student": "static",
    "lock_expires_s": 60.0,
    "policy": {
        "margin": 0.005, "confidence": 0.95, "resamples": 1000, "floors": {}, "first_floor": 0.3,
        "slices": "warn",
        "max_p50_ms": 10.0, "max_index_bytes": 10_000_000, "seed": 17,
    },
}  # fmt: skip


def params(**changes: Any) -> PromoteParams:
    """Parameters of the step with some changed."""
    return PromoteParams.model_validate(PARAMS | changes)


def copy_project(released: Path, folder: Path) -> Path:
    """The two releases and their data, every data set with test queries, without an evaluation."""
    shutil.copytree(released / RELEASES, folder / RELEASES)
    for name in ("corpus", "queries", "qrels"):
        table = read_table(released / INGEST, name)
        rows = [row | {"split": "test"} if row.get("split") == "dev" else row for row in table.to_pylist()]
        write_table(folder / INGEST, name, table.from_pylist(rows, schema=table.schema))
    (folder / "params.yaml").write_text("distill: {seed: 1}\n")
    return folder


def write_evaluation(quality: dict[str, float]) -> None:
    """Give every test query this nDCG@10 by student, and record everything in dvc.lock. In the present folder."""
    judged = {row["query_id"] for row in read_table(INGEST, "qrels").to_pylist() if row["split"] == "test"}
    queries = [row for row in read_table(INGEST, "queries").to_pylist() if row["query_id"] in judged]
    rows = [
        {"query_id": row["query_id"], "dataset": row["dataset"], "model": student, "split": "test"}
        | {"measure": "nDCG@10", "value": value}
        for student, value in quality.items()
        for row in queries
    ]
    write_table(REPORTS, "per_query", table_from_rows("per_query", rows))
    write_table(REPORTS, "slices", table_from_rows("slices", []))
    measured = {student: {"nDCG@10": value} for student, value in quality.items()}
    manifests = {name: RELEASES / name / "manifest.json" for name in quality if (RELEASES / name).is_dir()}
    metrics = {
        "retention": {student: {} for student in quality},
        "latency": {student: {"p50_ms": 0.5} for student in quality},
        "datasets": {"one": measured, "two": measured},
        "datasets_dev": {},
        "releases": {name: read_json(path)["checksum"] for name, path in manifests.items()},
    }
    write_json(REPORTS / "metrics.json", metrics)
    (REPORTS / "report.md").write_text(f"**{max(quality, key=lambda name: quality[name])}** is best.\n")
    write_lock(list(quality))


def write_lock(students: list[str]) -> None:
    """Record data, releases and reports as DVC would."""

    def items(*paths: Path) -> list[dict[str, str]]:
        return [{"path": path.as_posix(), "hash": "md5", "md5": dvc_md5(path)} for path in paths]

    evaluated = items(INGEST, *(RELEASES / student for student in students))
    reported = items(*(REPORTS / name for name in ("metrics.json", "report.md", "per_query.parquet", "slices.parquet")))
    stages = {"ingest": {"cmd": "x", "deps": [], "outs": items(*sorted(INGEST.iterdir()))}}
    stages |= {f"release@{name}": {"cmd": "x", "deps": [], "outs": items(RELEASES / name)} for name in students}
    stages["evaluate"] = {"cmd": "x", "deps": evaluated, "outs": reported}
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def promote(**arguments: Any) -> None:
    """Promote from the present folder, with PARAMS unless given."""
    promote_params = arguments.pop("params", params())
    commands.run(ingest=INGEST, reports=REPORTS, releases=RELEASES, params=promote_params, **arguments)


def release_files(folder: Path) -> dict[str, bytes]:
    """Path below the release inside `folder` -> bytes."""
    [root] = {path.parent.parent for path in folder.rglob("query_encoder/modules.json")}
    assert read_json(root / "manifest.json")["format"]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
