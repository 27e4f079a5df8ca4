"""Rows that could not be used: kept, counted by reason, and judged against the ratio limit."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from steps.core.errors import UserError

RAW_CHARACTERS = 500
EXAMPLES = 3
KEPT_DEFECTS, KEPT_OTHERS = 100_000, 1_000  # rows of one source and reason; the rest is only counted
_ROWS_BETWEEN_LOOKS = 100_000
_HOPELESS = 0.5  # share of defect rows, if above the ratio limit, at which the rest of a file is not read

_Item = TypeVar("_Item")


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
        self._counts: Counter[tuple[str, str]] = Counter()
        self._read: Counter[str] = Counter()
        self._defects: Counter[str] = Counter()

    def count_row(self, source: str) -> None:
        """Count one row read from the source."""
        self._read[source] += 1

    def add(self, source: str, line: int, reason: str, raw: bytes | str, *, defect: bool = True) -> None:
        """Keep a rejected row; only a defect of the data (not a guard's choice) counts against the ratio limit.

        Of one source and reason the first KEPT_DEFECTS or KEPT_OTHERS rows are kept, all are counted.
        """
        self._counts[source, reason] += 1
        if defect:
            self._defects[source] += 1
        if self._counts[source, reason] > (KEPT_DEFECTS if defect else KEPT_OTHERS):
            return
        text = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw
        text = text[:RAW_CHARACTERS].encode("utf-8", errors="replace").decode("utf-8")
        self.rows.append(Reject(source, line, reason, text))

    def watched(self, rows: Iterable[_Item], source: str, path: Path | str, max_ratio: float) -> Iterator[_Item]:
        """Yield the source's rows; UserError as soon as most of many are defect, rather than at the file's end."""
        for at, row in enumerate(rows, start=1):
            yield row
            if at % _ROWS_BETWEEN_LOOKS == 0:
                self.check(source, path, max(max_ratio, _HOPELESS))

    def check(self, source: str, path: Path | str, max_ratio: float) -> None:
        """Raise UserError with counts per reason and three examples when too many of the source's rows are defect."""
        read, defects = self._read[source], self._defects[source]
        if defects <= max_ratio * read:
            return
        rows = (row for row in self.rows if row.source == source)
        examples = "; ".join(
            f"line {row.line}: {row.reason}: {row.raw[:80]!r}" for row, _ in zip(rows, range(EXAMPLES), strict=False)
        )
        raise UserError(
            f"{path}: {defects} of {read} rows cannot be used, over ingest.max_reject_ratio {max_ratio:g}"
            f" ({self.counts(source)}; {examples}); fix the file or raise ingest.max_reject_ratio in params.yaml"
        )

    def counts(self, source: str) -> str:
        """The number of rows by reason, of a source and of those below it, as text; "" for none."""
        counts: Counter[str] = Counter()
        for (where, reason), count in self._counts.items():
            if where == source or where.startswith(f"{source}/"):
                counts[reason] += count
        return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))

    def report(self) -> dict[str, Any]:
        """Per reason the number of rows, how many of them are kept where not all are, and up to three examples."""
        by_reason: defaultdict[str, list[Reject]] = defaultdict(list)
        for row in sorted(self.rows):
            by_reason[row.reason].append(row)
        counts: Counter[str] = Counter()
        for (_, reason), count in self._counts.items():
            counts[reason] += count
        return {
            reason: {"rows": counts[reason]}
            | ({"kept": len(rows)} if len(rows) < counts[reason] else {})
            | {"examples": [row._asdict() for row in rows[:EXAMPLES]]}
            for reason, rows in by_reason.items()
        }
