"""Rollback: the previous champion serves again, its encoder with its own index, because a version holds both."""

from slimtower.common.errors import UserError
from steps.promote.lock import Lock
from steps.promote.move import After, Move, carry_out, events, nothing, recover
from steps.promote.registry import CHAMPION, PREVIOUS, Registry
from steps.promote.smoke import smoke_test

_ACTION = "rolled back to"


def roll_back(
    registry: Registry, lock: Lock, after: After = nothing, *, run: str = ""
) -> tuple[Move | None, list[str]]:
    """Make `previous` the champion, after a smoke test; returns the move and what was recovered before it.

    `previous` then names what the restored version had replaced in its time, so that a second rollback goes one further
    back. UserError when there is no previous version. One that was cut short is finished, and no other made. A
    scheduler's `run` goes back once: None where it did so before.
    """
    with lock.hold() as guard:
        notes, finished = recover(registry, guard)
    after("recovered")
    if finished and finished.action == _ACTION:
        return finished, [*notes, "that one was cut short, so no other was made; repeat it to go further back"]
    if run and run in {event["id"] for event in events(registry.name, registry.model_tags()).values()}:
        return None, notes
    aliases = registry.aliases()
    target, champion = aliases.get(PREVIOUS), aliases.get(CHAMPION)
    if target is None or target == champion:
        raise UserError(
            f"{registry.name}: no previous champion to go back to (champion: {champion}, previous: {target});"
            " see `python -m steps.promote --history`"
        )
    smoke_test(registry, target)
    after("smoke-tested")
    before = registry.existing(registry.tags(target).get("replaced"))
    if before is not None and (before == champion or "rolled_back_at" in registry.tags(before)):
        before = None
    move = Move.new(_ACTION, target, aliases, before, run)
    with lock.hold() as guard:
        carry_out(registry, move, guard, after)
    after("unlocked")
    return move, notes
