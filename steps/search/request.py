"""What was asked for, checked before anything slow is loaded."""

from pathlib import Path

from steps.core.errors import UserError


def check_query(query: str, k: int) -> None:
    """UserError for an empty query, or for fewer than one hit."""
    if not query.strip():
        raise UserError('search: the query is empty; give one, e.g. make search Q="running total along an axis"')
    if k < 1:
        raise UserError(f"search: k is {k}; ask for at least 1 hit")


def release_folder(releases: Path, student: str) -> Path:
    """Folder of a student's release, the newest where `student` is empty; UserError names what is released."""
    available = sorted(path.parent.name for path in releases.glob("*/manifest.json"))
    if not available:
        raise UserError(f"{releases}: no release here yet; run `make demo` first")
    if not student:
        return max(releases.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime_ns).parent
    if student not in available:
        raise UserError(f"search: student {student!r} is not released; choose one of {', '.join(available)}")
    return releases / student
