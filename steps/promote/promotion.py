"""The protocol: register -> challenger -> smoke test -> gate -> move the champion; and the way back.

Each step can be repeated. Only the move changes what is served, and only if the champion is still the one that the gate
compared with. A version that is refused, that fails its smoke test, or that an error keeps from the gate, leaves every
alias as it was.
"""

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import folder_digest
from steps.core.judged import JudgedSet
from steps.promote.evidence import Candidate, Evidence, evidence_from_json
from steps.promote.fresh_process import GOLDEN, GOLDEN_HITS, golden_hits, rescore, smoke_test
from steps.promote.gate import Decision, decide
from steps.promote.lock import Lock
from steps.promote.move import (
    After,
    Move,
    Refused,
    carry_out,
    events,
    note_refusal,
    nothing,
    operator,
    recover,
    refuse_rolled_back,
    utc_now,
)
from steps.promote.params import PromoteParams
from steps.promote.registry import CHALLENGER, CHAMPION, PREFIX, PREVIOUS, Registry, reading
from steps.tracking.release_model import log_release
from steps.tracking.runs import MlflowRun

_TAG, _DESCRIPTION = 5000, 5000  # characters that MLflow's database keeps
_ROLLED_BACK = "rolled back to"
MODEL = f"{PREFIX}model"  # tag of a run: the id of its logged model, once that is whole


@dataclass(frozen=True)
class Origin:
    """Where a release comes from. Files are logged with the version; tags are what versions are searched by."""

    tags: dict[str, str]
    files: list[Path]
    parent_run: str | None


@dataclass(frozen=True)
class Outcome:
    """What became of the candidate; `notes` tell of earlier moves that were recovered."""

    version: str
    decision: Decision | None  # None: it was the champion already
    notes: list[str]


def promote(
    registry: Registry,
    lock: Lock,
    candidate: Candidate,
    origin: Origin,
    judged: Sequence[JudgedSet],
    params: PromoteParams,
    *,
    again: bool = False,
    after: After = nothing,
) -> Outcome:
    """Promote the candidate if the gate lets it; Refused, with the reasons, when it does not.

    `again` allows a version that was rolled back. TransientError when the champion moved meanwhile.
    """
    with lock.hold() as guard:
        notes, _ = recover(registry, guard)
    after("recovered")
    aliases = registry.aliases()
    existing = find_version(registry, candidate.evidence.release)
    if existing is not None and existing == aliases.get(CHAMPION):
        return Outcome(existing, None, notes)
    if existing is not None and not again:
        refuse_rolled_back(registry, existing)
    golden = golden_hits(candidate.release, GOLDEN_HITS)
    version = register(registry, candidate, golden, origin, lock)
    after("registered")
    try:
        registry.point(CHALLENGER, version)
        after("challenger")
        smoke_test(registry, version)
        after("smoke-tested")
        champion = champion_evidence(registry, aliases.get(CHAMPION), candidate.evidence, judged, keep=True)
        decision = decide(candidate.evidence, champion, params.policy)
        decided = _note_decision(registry, version, decision, candidate.card)
        after("decided")
        if not decision.approved:
            with lock.hold() as guard:
                note_refusal(registry, version, *decided, guard)
            raise Refused(f"{registry.name}/{version} refused, no alias was moved: {'; '.join(decision.reasons)}")
        replaced = aliases.get(CHAMPION) or aliases.get(PREVIOUS)  # a champion that was deleted leaves its predecessor
        replaced = None if replaced == version else replaced
        with lock.hold() as guard:
            carry_out(registry, Move.new("promoted", version, aliases, replaced), guard, after, again=again)
    except (Exception, KeyboardInterrupt):
        _reset_challenger(registry, version, aliases.get(CHALLENGER))
        raise
    after("unlocked")
    return Outcome(version, decision, notes)


def _reset_challenger(registry: Registry, version: str, earlier: str | None) -> None:
    with contextlib.suppress(Exception):  # the error that led here matters more
        if registry.aliases().get(CHALLENGER) == version:  # else somebody else's promotion has set it meanwhile
            before = registry.existing(earlier)
            registry.point(CHALLENGER, before if before != version else None)


def champion_evidence(
    registry: Registry, version: str | None, candidate: Evidence, judged: Sequence[JudgedSet], *, keep: bool
) -> Evidence | None:
    """The champion on the candidate's evaluation, if there is one: as recorded, or measured anew by its own release.

    `keep`: store what was measured with the version, for the next time.
    """
    if version is None:
        return None
    name = evidence_name(candidate.evaluation.digest)
    recorded = registry.document(version, name)
    if recorded is not None:
        with reading(
            f"{registry.name}/{version}: its document {name}",
            "remove it from the artefacts of the version's run by hand: the champion is then measured anew",
        ):
            return evidence_from_json(recorded, candidate.evaluation)
    with tempfile.TemporaryDirectory(prefix="slimtower.") as scratch:
        folder = registry.download(version, Path(scratch))
        p50_ms = float(registry.tags(version).get("p50_ms", "inf"))
        evidence = rescore(folder, candidate.evaluation, judged, p50_ms)
    if keep and registry.has_run(version):
        registry.log_document(version, name, evidence.as_json())
    return evidence


def roll_back(
    registry: Registry, lock: Lock, after: After = nothing, *, run: str = ""
) -> tuple[Move | None, list[str]]:
    """Make `previous` the champion, after a smoke test; returns the move and what was recovered before it.

    `previous` then names what the restored version had replaced, so that a second rollback goes one further back. One
    that was cut short is finished, and no other made. A scheduler's `run` goes back once: None if it did before.
    UserError when there is no previous version.
    """
    with lock.hold() as guard:
        notes, finished = recover(registry, guard)
    after("recovered")
    if finished and finished.action == _ROLLED_BACK:
        return finished, [*notes, "that one was cut short, so no other was made; repeat it to go further back"]
    if run and run in {event["id"] for event in events(registry.name, registry.model_tags()).values()}:
        return None, notes
    aliases = registry.aliases()
    target, champion = aliases.get(PREVIOUS), aliases.get(CHAMPION)
    if target is None or target == champion:
        raise UserError(
            f"{registry.name}: no previous champion to go back to (champion: {champion}, previous: {target});"
            f" see `python -m steps.promote --history --name {registry.name}`"
        )
    smoke_test(registry, target)
    after("smoke-tested")
    before = registry.existing(registry.tags(target).get("replaced"))
    if before is not None and (before == champion or "rolled_back_at" in registry.tags(before)):
        before = None
    move = Move.new(_ROLLED_BACK, target, aliases, before, run)
    with lock.hold() as guard:
        carry_out(registry, move, guard, after)
    after("unlocked")
    return move, notes


def _note_decision(registry: Registry, version: str, decision: Decision, card: str) -> tuple[str, str]:
    """Tag and describe the version with the decision; returns when and by whom it was made."""
    at, by = utc_now(), operator()
    verdict, *checks = decision.lines()
    reasons = _fitting(checks, _TAG - 50, "... and {} more")
    registry.tag(version, {"decision": verdict, "decided_at": at, "decided_by": by, "reasons": reasons})
    page = description(registry.name, version, decision, card)
    registry.api.update_model_version(registry.name, version, page)
    return at, by


def description(model: str, version: str, decision: Decision, card: str) -> str:
    """What MLflow's page of a version says, Markdown: the gate's verdict, how to load it, and of the card what fits."""
    verdict, *checks = decision.lines()
    lines = [
        f"**The gate: {verdict}.**",
        "",
        *(f"- {check.strip()}" for check in checks),
        "",
        f'Load it: `mlflow.pyfunc.load_model("models:/{model}/{version}").predict([{{"query": "your question"}}])`',
        "",
        *card.splitlines(),
    ]
    return _fitting(lines, _DESCRIPTION - 10, "…")


def _fitting(lines: Sequence[str], limit: int, rest: str) -> str:
    """The first lines that so many characters hold; `rest` stands for the others, `{}` in it for their number."""
    count = sum(length <= limit for length in accumulate(len(line) + 1 for line in lines))
    return "\n".join(lines if count == len(lines) else [*lines[:count], rest.format(len(lines) - count)])


def evidence_name(digest: str) -> str:
    """Name of the document that holds a version's evidence on one evaluation, by what its release serves."""
    return f"evidence/{digest[:16]}.served.json"


def publish(release: Path, run: MlflowRun) -> str:
    """Store the release as a logged model of the run, unless its tag names one; returns the model's id."""
    model_id = run.api.get_run(run.run_id).data.tags.get(MODEL)
    if not model_id or not run.has_model(model_id):
        log_release(run, release, "release")
    return str(run.api.get_run(run.run_id).data.tags[MODEL])


def find_version(registry: Registry, digest: str) -> str | None:
    """The version that holds the release of this digest."""
    return next((number for number, tags in registry.all_tags().items() if tags.get("release") == digest), None)


def register(registry: Registry, candidate: Candidate, golden: Any, origin: Origin, lock: Lock) -> str:
    """The number of the version that holds the candidate's release: found by its digest, or made.

    A registration that was cut short is completed. Of two at once, the lock lets the second find the first's version.
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
