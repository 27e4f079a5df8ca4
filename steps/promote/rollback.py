"""Rollback: the previous champion serves again, its encoder with its own index, because a version holds both."""

from steps.core.errors import UserError
from steps.promote.lock import Lock
from steps.promote.move import After, Move, carry_out, nothing, recover
from steps.promote.registry import CHAMPION, PREVIOUS, Registry
from steps.promote.smoke import smoke_test


def roll_back(registry: Registry, lock: Lock, after: After = nothing) -> tuple[Move, list[str]]:
    """Make `previous` the champion, after a smoke test; returns the move and what was recovered before it.

    `previous` then names what the restored version had replaced in its time, so that a second rollback goes one further
    back. UserError when there is no previous version.
    """
    with lock.held() as guard:
        notes = recover(registry, guard)
    after("recovered")
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
    move = Move.new("rolled back to", target, aliases, before)
    with lock.held() as guard:
        carry_out(registry, move, guard, after)
    after("unlocked")
    return move, notes
