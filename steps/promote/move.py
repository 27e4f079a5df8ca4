"""Moves of the champion: one at a time, announced before, recorded after, and recovered when one was interrupted.

    intent tag -> alias previous -> alias champion -> audit tags

Until `champion` is set the old one serves; from then on the new one does. The intent holds both old aliases, so that
whoever comes next restores them (champion not set yet) or finishes the record (champion set).
"""

import contextlib
import getpass
import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from slimtower.common.errors import TransientError, UserError
from steps.promote.lock import Guard
from steps.promote.registry import CHALLENGER, CHAMPION, PREFIX, PREVIOUS, Registry, reading

After = Callable[[str], None]  # called with the name of each finished step
EVENT = "event."
_BY_HAND = "remove the tag by hand (MlflowClient().delete_registered_model_tag)"


def nothing(step: str) -> None:
    """Do nothing after a step."""


@dataclass(frozen=True)
class Move:
    """A change of aliases: champion becomes `version`, previous becomes `then_previous`; the old ones beside them."""

    action: str  # promoted, or rolled back to
    version: str
    champion: str | None
    previous: str | None
    then_previous: str | None
    by: str
    at: str
    id: str

    @classmethod
    def new(
        cls, action: str, version: str, aliases: dict[str, str], then_previous: str | None, identity: str = ""
    ) -> "Move":
        """A move from the present aliases; `identity`: by which it is known again."""
        old = (aliases.get(CHAMPION), aliases.get(PREVIOUS))
        return cls(action, version, *old, then_previous, operator(), utc_now(), identity or uuid.uuid4().hex)


class Refused(UserError):
    """The gate said no."""


class RolledBack(Refused):
    """Somebody took this release back."""


def refuse_rolled_back(registry: Registry, version: str) -> None:
    """RolledBack if the version was rolled back."""
    if moment := registry.tags(version).get("rolled_back_at"):
        raise RolledBack(
            f"{registry.name}/{version}: this release was rolled back at {moment};"
            " `make promote PROMOTE_FLAGS=--again` promotes it all the same"
        )


def carry_out(registry: Registry, move: Move, guard: Guard, after: After, *, again: bool = True) -> None:
    """Move the aliases, under the lock, unless the version is the champion by now.

    TransientError when the champion is no longer the one that was judged. Without `again` Refused for what was rolled
    back.
    """
    recover(registry, guard)
    aliases = registry.aliases()
    if aliases.get(CHAMPION) == move.version:  # another promotion of the same release was first
        return
    if aliases.get(CHAMPION) != move.champion:
        raise TransientError(
            f"{registry.name}: champion moved from {move.champion} to {aliases.get(CHAMPION)} meanwhile; nothing was"
            f" changed, run it again to judge version {move.version} against the new one"
        )
    if not again:
        refuse_rolled_back(registry, move.version)
    guard()
    registry.tag_model("intent", json.dumps(asdict(move), sort_keys=True))
    after("intent")
    guard()
    registry.point(PREVIOUS, move.then_previous)
    after("previous")
    guard()
    registry.point(CHAMPION, move.version)
    after("champion")
    _record(registry, move, guard, after)


def recover(registry: Registry, guard: Guard) -> tuple[list[str], Move | None]:
    """Finish or undo a move that was cut short, and record one made by other hands.

    Returns what it found, in words, and the move that it finished. After a move by other hands `previous` names the
    champion before it; a move back to `previous` leaves that as it is.
    """
    tags, aliases = registry.model_tags(), registry.aliases()
    champion, recorded, notes = aliases.get(CHAMPION), tags.get(CHAMPION), []
    events(registry.name, tags)  # a damaged one, to which nothing can be added, is told before anything moves
    if "intent" in tags:
        with reading(
            f"{registry.name}: its tag {PREFIX}intent, of a move that was cut short",
            f"see to it that the aliases {CHAMPION} and {PREVIOUS} are right, then {_BY_HAND}",
        ):
            move = Move(**json.loads(tags["intent"]))
        guard()
        if champion == move.version:
            registry.point(PREVIOUS, registry.existing(move.then_previous))
            _record(registry, move, guard, nothing)
            return [f"finished the record of version {move.version}, {move.action} by {move.by} at {move.at}"], move
        if champion == move.champion:
            registry.point(PREVIOUS, registry.existing(move.previous))
            notes.append(f"undid a move to version {move.version} that was cut short; champion is still {champion}")
        registry.tag_model("intent", None)
    if champion != recorded:
        guard()
        if champion not in (None, aliases.get(PREVIOUS)) and registry.existing(recorded):
            registry.point(PREVIOUS, recorded)
        _event(registry, {"action": "moved by other hands", "version": champion, "replaced": recorded})
        registry.tag_model(CHAMPION, champion)
        notes.append(f"champion was moved by other hands from {recorded} to {champion}")
    return notes, None


def _record(registry: Registry, move: Move, guard: Guard, after: After) -> None:
    """Write the audit trail, of which parts may be there already, guarded as the aliases are. The intent goes last."""
    guard()
    event = {"action": move.action, "version": move.version, "replaced": move.champion}
    _event(registry, {**event, "at": move.at, "by": move.by, "id": move.id})
    after("event")
    guard()
    if move.action == "promoted":
        tags = {"promoted_at": move.at, "promoted_by": move.by, "replaced": move.champion, "rolled_back_at": None}
        registry.tag(move.version, tags)
    elif replaced := registry.existing(move.champion):
        registry.tag(replaced, {"rolled_back_at": move.at, "rolled_back_by": move.by})
    after("audit")
    guard()
    if registry.aliases().get(CHALLENGER) == move.version:
        registry.point(CHALLENGER, None)
    registry.tag_model(CHAMPION, move.version)
    registry.tag_model("intent", None)
    after("intent removed")


def note_refusal(registry: Registry, version: str, at: str, by: str, guard: Guard) -> None:
    """Add a refusal to the audit trail; the version's own tags tell of its last decision alone."""
    guard()
    _event(registry, {"action": "refused", "version": version, "at": at, "by": by})


def _event(registry: Registry, event: dict[str, str | None]) -> None:
    """Append to the events of the registered model, once for each id."""
    event = {"at": utc_now(), "by": operator(), "id": uuid.uuid4().hex, **event}
    past = events(registry.name, registry.model_tags())
    if event["id"] not in {earlier["id"] for earlier in past.values()}:
        registry.tag_model(f"{EVENT}{max(past, default=0) + 1:06d}", json.dumps(event, sort_keys=True))


def events(name: str, tags: Mapping[str, str]) -> dict[int, dict[str, Any]]:
    """Number -> event, of the tags of the registered model, in order; UserError for a damaged one."""
    numbered = {}
    for key, value in tags.items():
        if key.startswith(EVENT):
            with reading(f"{name}: its tag {PREFIX}{key}", _BY_HAND):
                number, event = int(key.removeprefix(EVENT)), json.loads(value)
                if missing := sorted({"action", "at", "id", "version"} - event.keys()):
                    raise ValueError(f"no {', '.join(missing)}")
                numbered[number] = event
    return dict(sorted(numbered.items()))


def utc_now() -> str:
    """The present time, UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def operator() -> str:
    """Who does this: SLIMTOWER_OPERATOR, the user of the tracking server, or of this machine."""
    for name in ("SLIMTOWER_OPERATOR", "MLFLOW_TRACKING_USERNAME"):
        if value := os.environ.get(name):
            return value
    with contextlib.suppress(KeyError, OSError):  # a container without a user of that number
        return getpass.getuser()
    return "unknown"


COLUMNS = ("when", "what", "version", "replaced", "by", "student", "git commit")


def history(registry: Registry) -> list[tuple[str, ...]]:
    """One row an event, oldest first: promotions, rollbacks, moves by other hands, and refusals."""
    versions = registry.all_tags()
    entries = [*events(registry.name, registry.model_tags()).values()]
    noted = {(event["version"], event["at"]) for event in entries}
    for version, tags in versions.items():
        at = tags.get("decided_at", "")  # missing where a kill came between the tags
        if tags.get("decision") == "refused" and (version, at) not in noted:  # a kill came before it was noted
            entries.append({"at": at, "action": "refused", "version": version, "by": tags.get("decided_by")})
    rows = []
    for event in sorted(entries, key=lambda event: str(event["at"])):
        tags = versions.get(event["version"] or "", {})
        row = [event["at"], event["action"], event["version"], event.get("replaced"), event.get("by")]
        rows.append(tuple(str(cell or "-") for cell in [*row, tags.get("student"), tags.get("git_commit", "")[:12]]))
    return rows


def as_table(rows: list[tuple[str, ...]]) -> str:
    """Rows below their column names, padded."""
    lines = [COLUMNS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
