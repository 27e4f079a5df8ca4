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

from slimtower.common.errors import UserError
from steps.core.judged import JudgedSet
from steps.promote.candidate import Candidate
from steps.promote.evidence import Evidence, evidence_from_json
from steps.promote.gate import Decision, decide
from steps.promote.lock import Lock
from steps.promote.malformed import reading
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
from steps.promote.registration import Origin, evidence_name, find_version, register
from steps.promote.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry
from steps.promote.rescoring import rescore
from steps.promote.smoke import GOLDEN_HITS, golden_hits, smoke_test

_TAG, _DESCRIPTION = 5000, 5000  # characters that MLflow's database keeps
_ROLLED_BACK = "rolled back to"


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
    """Let `challenger` name again what it did before, if that is there."""
    with contextlib.suppress(Exception):  # the error that led here matters more
        if registry.aliases().get(CHALLENGER) == version:  # else somebody else's promotion has set it meanwhile
            before = registry.existing(earlier)
            registry.point(CHALLENGER, before if before != version else None)


def dry_run_decision(
    registry: Registry, candidate: Candidate, judged: Sequence[JudgedSet], params: PromoteParams
) -> Decision:
    """The decision as it would fall now; writes nothing, neither to the registry nor to the artefact store."""
    champion = champion_evidence(registry, registry.aliases().get(CHAMPION), candidate.evidence, judged, keep=False)
    return decide(candidate.evidence, champion, params.policy)


def champion_evidence(
    registry: Registry, version: str | None, candidate: Evidence, judged: Sequence[JudgedSet], *, keep: bool
) -> Evidence | None:
    """The champion on the candidate's evaluation: as recorded, or measured anew through its own release.

    `keep`: store what was measured with the version, for the next time. None without a champion.
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

    A version holds encoder and index, so both go back together. `previous` then names what the restored version had
    replaced in its time, so that a second rollback goes one further back. UserError when there is no previous version.
    One that was cut short is finished, and no other made. A scheduler's `run` goes back once: None if it did before.
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
    registry.describe(version, description(registry.name, version, decision, card))
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
