"""Where a release comes from: commit, dvc.lock, data, pipeline run. Checked against the files, then kept as tags."""

import hashlib
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import sha256_file
from steps.core.lineage import Stages, lock_stages
from steps.core.tracking import git_commit
from steps.promote.recorded import REMEDY, check_recorded, dvc_md5
from steps.promote.registration import Origin
from steps.promote.registry import PREFIX, Registry

LOCK = Path("dvc.lock")
_FILES = ("dvc.lock", "params.yaml", "sources.json", "images.lock")


def read_origin(registry: Registry, student: str, release: Path, reports: Path, ingest: Path) -> Origin:
    """The origin of a student's release; UserError when a file is not what dvc.lock records of its stage.

    Paths are relative to the project's root, where dvc.lock lies.
    """
    stages = lock_stages(LOCK)
    if not stages:
        raise UserError(f"{LOCK}: not found or empty; {REMEDY}")
    release_md5 = check_recorded(stages, f"release@{student}", release)
    data_md5 = check_recorded(stages, "ingest", ingest)
    for name in ("metrics.json", "per_query.parquet"):
        check_recorded(stages, "evaluate", reports / name)
    for path in (release, ingest):
        _check_evaluated(stages, path)
    digest = sha256_file(LOCK)
    parent = _pipeline_run(registry, digest)
    tags = {
        "student": student,
        "git_commit": parent.data.tags.get(f"{PREFIX}git_commit", "unknown") if parent else git_commit(),
        "dvc_lock": digest,
        "dvc_lock_md5": hashlib.md5(LOCK.read_bytes(), usedforsecurity=False).hexdigest(),
        "data_md5": data_md5,
        "release_md5": release_md5,
    }
    if parent:
        tags["pipeline_run"] = str(parent.info.run_id)
    files = [path for name in _FILES if (path := Path(name)).is_file()]
    return Origin(tags, files, str(parent.info.run_id) if parent else None)


def _check_evaluated(stages: Stages, path: Path) -> None:
    """The evaluation read this very folder, or one that holds it; UserError when it changed since."""
    for item in stages["evaluate"].get("deps", []):
        depended = Path(item["path"])
        if depended == path or depended in path.parents:
            if dvc_md5(depended) != item.get("md5"):
                raise UserError(f"{depended}: changed since it was evaluated; {REMEDY}")
            return
    raise UserError(f"dvc.lock: stage evaluate does not depend on {path}; {REMEDY}")


def _pipeline_run(registry: Registry, lock_digest: str) -> Any | None:
    """The earliest pipeline run that ended with this dvc.lock, if this server tracked one."""
    wanted = f"tags.`{PREFIX}dvc_lock` = '{lock_digest}' and tags.`{PREFIX}pipeline` != ''"
    found = registry.api.search_runs(
        [registry.experiment()], wanted, order_by=["attributes.start_time ASC"], max_results=1
    )
    return found[0] if found else None
