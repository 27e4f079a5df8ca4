"""A release becomes one model version, once: encoder, index, manifest, evidence and lineage under one number."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import folder_digest
from steps.promote.candidate import Candidate
from steps.promote.lock import Lock
from steps.promote.registry import PREFIX, Registry
from steps.tracking.release_model import log_release
from steps.tracking.runs import MlflowRun

GOLDEN = "golden.json"
MODEL = f"{PREFIX}model"  # tag of a run: the id of its logged model, once that is whole


@dataclass(frozen=True)
class Origin:
    """Where a release comes from. Files are logged with the version; tags are what versions are searched by."""

    tags: dict[str, str]
    files: list[Path]
    parent_run: str | None


def evidence_name(digest: str) -> str:
    """Name of the document that holds a version's evidence on one evaluation, measured as it is today.

    What was measured otherwise has another name, and is measured anew: of before fused hits were those of the index
    that serves `evidence/<digest>.json`.
    """
    return f"evidence/{digest[:16]}.served.json"


def publish(release: Path, run: MlflowRun) -> str:
    """Store the release as a logged model of the run, served by its own code; returns its id.

    The run's tag names one that is whole, unless it was deleted since.
    """
    model_id = run.api.get_run(run.run_id).data.tags.get(MODEL)
    if not model_id or not run.has_model(model_id):
        log_release(run, release, "release")
    return str(run.api.get_run(run.run_id).data.tags[MODEL])


def find_version(registry: Registry, digest: str) -> str | None:
    """The version that holds the release of this digest."""
    return next((number for number, tags in registry.all_tags().items() if tags.get("release") == digest), None)


def register(registry: Registry, candidate: Candidate, golden: Any, origin: Origin, lock: Lock) -> str:
    """The version of the candidate's release: found by its digest, or made. Returns its number.

    Every part is looked for before it is made, so that a registration cut short is completed by the next one. Of two
    that register one release at once, the lock lets the second find the version of the first.
    """
    digest = candidate.evidence.release
    version = find_version(registry, digest)
    if version is None:
        run = _run(registry, candidate, origin)
        model = publish(candidate.release, run)
        if folder_digest(candidate.release) != digest:  # minutes after it was read; what was stored is of no use
            registry.api.delete_tag(run.run_id, MODEL)
            raise TransientError(f"{candidate.release}: was replaced while it was promoted; run this again")
        for path in origin.files:
            run.artifact(path)
        location = registry.api.get_logged_model(model).artifact_location
        facts = {"release": digest, "p50_ms": repr(candidate.evidence.p50_ms)}
        tags = {PREFIX + key: value for key, value in {**origin.tags, **facts}.items()}
        with lock.hold():
            version = find_version(registry, digest)
            if version is None:
                created = registry.api.create_model_version(
                    registry.name, location, run_id=run.run_id, model_id=model, tags=tags
                )
                version = str(created.version)
        registry.api.set_terminated(run.run_id, "FINISHED")
    name = evidence_name(candidate.evidence.evaluation.digest)
    documents = {GOLDEN: golden, name: candidate.evidence.as_json()}
    missing = [document for document in documents if registry.document(version, document) is None]
    if missing and not registry.has_run(version):
        raise UserError(
            f"{registry.name}/{version}: holds this release, but MLflow has removed the run that registered it, and"
            f" {missing[0]} with it; delete that version in MLflow, then run `make promote` again"
        )
    for document in missing:
        registry.log_document(version, document, documents[document])
    return version


def _run(registry: Registry, candidate: Candidate, origin: Origin) -> MlflowRun:
    """The run that holds the release: one that an interrupted registration left, or a new one."""
    experiment, digest = registry.experiment(), candidate.evidence.release
    condition = f"tags.`{PREFIX}release` = '{digest}' and tags.`{PREFIX}registered_as` = '{registry.name}'"
    runs = registry.api.search_runs([experiment], condition, max_results=1)
    if runs:
        return MlflowRun(registry.api, str(runs[0].info.run_id), experiment)
    facts = {"release": digest, "registered_as": registry.name, "stage": "promote"}
    tags = {PREFIX + key: value for key, value in {**origin.tags, **facts}.items()}
    if origin.parent_run:
        tags["mlflow.parentRunId"] = origin.parent_run
    created = registry.api.create_run(experiment, run_name=f"promote {candidate.student}", tags=tags)
    run = MlflowRun(registry.api, str(created.info.run_id), experiment)
    if origin.parent_run and (data := registry.api.get_run(origin.parent_run).inputs.dataset_inputs):
        registry.api.log_inputs(run.run_id, data)
    run.metrics({"p50_ms": candidate.evidence.p50_ms, "index_bytes": candidate.evidence.index_bytes})
    return run
