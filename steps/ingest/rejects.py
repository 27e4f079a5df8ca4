"""Rows that could not be used: kept, counted by reason, and judged against the ratio limit."""

import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slimtower.common.errors import UserError
from steps.ingest.rows import Defect, LeftOut, MissingTarget

RAW_CHARACTERS = 500
EXAMPLES = 3
KEPT_DEFECTS, KEPT_OTHERS = 100_000, 1_000  # rows of one source and reason; the rest is only counted
_ROWS_BETWEEN_LOOKS = 100_000
_HOPELESS = 0.5  # share of defect rows, if above the ratio limit, at which the rest of a file is not read
_OTHER_CORPUS = 0.5  # share of a log's rows about what is not there, above which it is the log of something else
_LOST_CLICKS_TOLD = 0.1  # share of a log's clicks that count for nothing, above which a line warns
_SETTINGS = {
    "bad_timestamp": 'timestamp: "%d.%m.%Y %H:%M" says how the source writes times',
    "bad_rank": "rank_from: 0 says that its first result has rank 0",
    "bad_clicked": 'clicked: {true: [Y], false: [N, ""]} says which values are a click; with one list all others are'
    ' its opposite, as {false: ["", 0]} for a number or a time of clicks',
    "invalid_utf8": "encoding: latin-1 reads what is no UTF-8",
    "too_many_columns": 'delimiter: ";" says what is between the columns',
}
_ADVICE = {"bad_grade": "grades are whole numbers, so multiply all by one number (0.5 and 1.0 by 2)"}

_Item = TypeVar("_Item")
Raw = bytes | str | Callable[[], bytes | str]  # what was read, for the table of rejects


class Reject(NamedTuple):
    """A row of the rejects; `line` is 1-based."""

    source: str
    line: int
    reason: str
    raw: str


class Rejects:
    """The rejected rows of a run, how many rows each source had, and which share of them may be defect."""

    def __init__(self, max_ratio: float) -> None:
        self.max_ratio = max_ratio
        self.rows: list[Reject] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._rows_read: Counter[str] = Counter()
        self._defects: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()

    def count_rows(self, source: str, count: int = 1) -> None:
        """Count rows that were read, whatever becomes of them."""
        self._rows_read[source] += count

    def add(self, source: str, line: int, reason: str, raw: bytes | str, *, defect: bool = True) -> None:
        """Keep a rejected row; only a defect of the data (not a guard's choice) counts against the ratio limit."""
        self._counts[source, reason] += 1
        if defect:
            self._defects[source] += 1
        if self._counts[source, reason] > (KEPT_DEFECTS if defect else KEPT_OTHERS):
            return
        text = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw
        text = text[:RAW_CHARACTERS].encode("utf-8", errors="replace").decode("utf-8")
        self.rows.append(Reject(source, line, reason, text))

    def guarded(
        self, rows: Iterable[tuple[int, _Item]], source: str, path: Path | str
    ) -> Iterator[tuple[int, _Item, "_Guard"]]:
        """Count each row, and yield it with the guard for what is done with it; after the last one `check`."""
        for line, row in rows:
            self.count_rows(source)
            yield line, row, _Guard(self, source, line, row if isinstance(row, (bytes, str)) else row.__repr__)
        self.check(source, path)

    def guard(self, source: str, line: int, raw: Raw) -> "_Guard":
        """In a `with`, what has a Defect inside is rejected; the row was counted when it was read."""
        return _Guard(self, source, line, raw)

    def add_defect(self, source: str, line: int, defect: Defect, raw: Raw) -> None:
        """Keep a rejected row. A MissingTarget or LeftOut is no defect: documents leave a corpus, logs stay."""
        is_defect = not isinstance(defect, MissingTarget | LeftOut)
        self.add(source, line, defect.reason, raw() if callable(raw) else raw, defect=is_defect)
        self._missing[source] += isinstance(defect, MissingTarget)

    def check_log(self, sources: Sequence[str], subject: str, other_rows: int = 0) -> None:
        """UserError where most rows of a log's files, `other_rows` not counted, are about what is missing.

        A line warns of the files of which that is so, where it is not so of all.
        """
        missing = sum(self._missing[source] for source in sources)
        rows = sum(self._rows_read[source] for source in sources) - other_rows
        if missing > _OTHER_CORPUS * rows:
            raise UserError(
                f"{subject}: {missing} of {rows} rows are about documents or searches that are not there"
                f" ({self._examples(sources)}); give the corpus and the searches of this log"
            )
        lost = [source for source in sources if self._missing[source] > _OTHER_CORPUS * self._rows_read[source]]
        if lost:
            worst = max(lost, key=lambda source: (self._missing[source], source))
            _warn(
                f"most rows of {len(lost)} of {len(sources)} files of the log are about documents or searches that are"
                f" not there, such as {self._missing[worst]:,} of {self._rows_read[worst]:,} in {worst}; they are"
                " left out: give the corpus and the searches of their time"
            )

    def watched(self, rows: Iterable[_Item], source: str, path: Path | str) -> Iterator[_Item]:
        """Yield the source's rows; UserError as soon as most of many are defect, rather than at the end."""
        for at, row in enumerate(rows, start=1):
            yield row
            if at % _ROWS_BETWEEN_LOOKS == 0:
                self.look(source, path)

    def look(self, source: str, path: Path | str) -> None:
        """UserError if most of many rows that were read are defect."""
        if self._rows_read[source] >= _ROWS_BETWEEN_LOOKS:
            self.check(source, path, at_least=_HOPELESS)

    def check(self, source: str, path: Path | str, *, has_settings: bool = False, at_least: float = 0.0) -> None:
        """UserError with counts per reason and three examples when too many rows are defect.

        `source` is a file, or what lies above several: their rows count together. With settings the message names
        those that may mend it. `at_least`: a share that is allowed whatever the limit.
        """
        max_ratio = max(self.max_ratio, at_least)
        files = [name for name in self._rows_read if _is_below(name, source)]
        total, defects = (sum(counts[name] for name in files) for counts in (self._rows_read, self._defects))
        if defects <= max_ratio * total:
            return
        raise UserError(
            f"{path}: {defects} of {total} rows cannot be used, over ingest.max_reject_ratio {max_ratio:g}"
            f" ({self.counts(source)}; {self._examples([name for name in files if self._defects[name]])});"
            f" {self._settings(source, has_settings)}fix the file or raise ingest.max_reject_ratio in params.yaml"
        )

    def _settings(self, source: str, has_settings: bool) -> str:
        """What a source may say about the reasons for which its rows are left out, in words."""
        offers = _SETTINGS | _ADVICE if has_settings else _ADVICE
        reasons = {reason for name, reason in self._counts if _is_below(name, source)}
        offered = [offer for reason, offer in offers.items() if reason in reasons]
        return "".join(f"{offer}; " for offer in offered)

    def _examples(self, sources: Sequence[str]) -> str:
        names = set(sources)
        rows = heapq.nsmallest(EXAMPLES, (row for row in self.rows if row.source in names))
        several = len(sources) > 1
        return "; ".join(
            f"{f'{row.source} ' if several else ''}line {row.line}: {row.reason}: {row.raw[:80]!r}" for row in rows
        )

    def counts(self, source: str) -> str:
        """The number of rows by reason, of a source and of those below it, as text; "" for none."""
        counts: Counter[str] = Counter()
        for (where, reason), count in self._counts.items():
            if _is_below(where, source):
                counts[reason] += count
        return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))

    def report(self) -> dict[str, Any]:
        """Per reason the number of rows, how many of them are kept where not all are, and where up to three stood.

        What they held is in the table of rejects alone, which fewer people see.
        """
        by_reason: defaultdict[str, list[Reject]] = defaultdict(list)
        for row in sorted(self.rows):
            by_reason[row.reason].append(row)
        counts: Counter[str] = Counter()
        for (_, reason), count in self._counts.items():
            counts[reason] += count
        return {
            reason: {"rows": counts[reason]}
            | ({"kept": len(rows)} if len(rows) < counts[reason] else {})
            | {"examples": [{"source": row.source, "line": row.line} for row in rows[:EXAMPLES]]}
            for reason, rows in by_reason.items()
        }


class _Guard:
    """Not `contextlib.contextmanager`, which would take longer than reading a row of triplets does."""

    __slots__ = ("at", "rejects")

    def __init__(self, rejects: Rejects, *at: Any) -> None:
        self.rejects, self.at = rejects, at

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Defect):
            source, line, raw = self.at
            self.rejects.add_defect(source, line, error, raw)
        return isinstance(error, Defect)


def _is_below(source: str, above: str) -> bool:
    return source == above or source.startswith(f"{above}/")


def _warn(text: str) -> None:
    print(f"ingest: WARNING: {text}", file=sys.stderr)


@dataclass
class Clicks:
    """Clicks of a log that are on a search that counts, and those among them that count for nothing."""

    total: int = 0
    lost: int = 0
    example: str = ""

    def lose(self, example: str, count: int = 1) -> None:
        """Count clicks that are lost; the first one is shown."""
        self.lost += count
        self.example = self.example or example

    def check(self, subject: str, advice: str) -> None:
        """UserError where most clicks are lost, however many other rows are of use; a line warns of a tenth."""
        if self.lost <= _LOST_CLICKS_TOLD * self.total:
            return
        text = f"{subject}: {self.lost:,} of {self.total:,} clicks are lost, such as {self.example}; {advice}"
        if self.lost > _OTHER_CORPUS * self.total:
            raise UserError(text)
        _warn(text)
