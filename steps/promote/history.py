"""Who moved the champion, when, from what to what: the audit trail as a table."""

from steps.promote.move import events
from steps.promote.registry import Registry

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
