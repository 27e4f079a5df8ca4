"""The protocol: register -> challenger -> smoke test -> gate -> move the champion. Each step can be repeated.

Only the move changes what is served, and only if the champion is still the one that the gate compared with. A version
that is refused, that fails its smoke test, or that an error keeps from the gate, leaves every alias as it was.
"""

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.core.judged import JudgedSet
from steps.promote.candidate import Candidate
from steps.promote.description import description
from steps.promote.evidence import Evidence, evidence_from_json
from steps.promote.gate import Decision, decide
from steps.promote.lock import Lock
from steps.promote.malformed import reading
from steps.promote.move import (
    After,
    Move,
    Refused,
    carry_out,
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

_TAG = 5000  # characters


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
        decided = _note_decision(registry, version, decision)
        registry.describe(version, description(registry.name, version, decision, candidate.card))
        after("decided")
        if not decision.approved:
            with lock.hold() as guard:
                note_refusal(registry, version, *decided, guard)
            raise Refused(f"{registry.name}/{version} refused, nothing was changed: {'; '.join(decision.reasons)}")
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


def _note_decision(registry: Registry, version: str, decision: Decision) -> tuple[str, str]:
    """Tag the version with the decision; returns when and by whom it was made."""
    at, by = utc_now(), operator()
    registry.tag(
        version,
        {
            "decision": "approved" if decision.approved else "refused",
            "decided_at": at,
            "decided_by": by,
            "reasons": _within_a_tag(decision.lines()[1:]),
        },
    )
    return at, by


def _within_a_tag(lines: Sequence[str]) -> str:
    """The first lines that a tag holds on any server, and how many there are besides."""
    fitting: list[str] = []
    for line in lines:
        if sum(len(text) + 1 for text in fitting) + len(line) > _TAG - 50:
            return "\n".join([*fitting, f"... and {len(lines) - len(fitting)} more"])
        fitting.append(line)
    return "\n".join(fitting)
