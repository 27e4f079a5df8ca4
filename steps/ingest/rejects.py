"""Rows that could not be used: kept, counted by reason, and judged against the ratio limit."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError

RAW_CHARACTERS = 500
EXAMPLES = 3


class Reject(NamedTuple):
    """A row of the rejects; `line` is 1-based."""

    source: str
    line: int
    reason: str
    raw: str


class Rejects:
    """The rejected rows of a run, and how many rows each source had."""

    def __init__(self) -> None:
        self.rows: list[Reject] = []
        self._read: Counter[str] = Counter()
        self._defects: Counter[str] = Counter()

    def count_row(self, source: str) -> None:
        """Count one row read from the source."""
        self._read[source] += 1

    def add(self, source: str, line: int, reason: str, raw: bytes | str, *, defect: bool = True) -> None:
        """Keep a rejected row; only a defect of the data (not a guard's choice) counts against the ratio limit."""
        text = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw
        text = text.encode("utf-8", errors="replace").decode("utf-8")
        self.rows.append(Reject(source, line, reason, text[:RAW_CHARACTERS]))
        if defect:
            self._defects[source] += 1

    def check(self, source: str, path: Path | str, max_ratio: float) -> None:
        """Raise UserError with counts per reason and three examples when too many of the source's rows are defect."""
        read, defects = self._read[source], self._defects[source]
        if defects <= max_ratio * read:
            return
        rows = [row for row in self.rows if row.source == source]
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(Counter(r.reason for r in rows).items()))
        examples = "; ".join(f"line {row.line}: {row.reason}: {row.raw[:80]!r}" for row in rows[:EXAMPLES])
        raise UserError(
            f"{path}: {defects} of {read} rows cannot be used, over ingest.max_reject_ratio {max_ratio:g}"
            f" ({counts}; {examples}); mend the file or raise ingest.max_reject_ratio in params.yaml"
        )

    def table_rows(self) -> list[dict[str, Any]]:
        """Rows of the table `rejects`, sorted."""
        return [row._asdict() for row in sorted(self.rows)]

    def report(self) -> dict[str, Any]:
        """Per reason the number of rows and up to three examples."""
        by_reason: dict[str, list[Reject]] = {}
        for row in sorted(self.rows):
            by_reason.setdefault(row.reason, []).append(row)
        return {
            reason: {"rows": len(rows), "examples": [row._asdict() for row in rows[:EXAMPLES]]}
            for reason, rows in by_reason.items()
        }
