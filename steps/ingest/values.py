"""Values of a source, whichever type and spelling its file gives them: texts, ids, ranks, and what was clicked.

What cannot be mistaken is read; what can be is a Defect, and `Reading` has the settings.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any
from unicodedata import normalize

from steps.ingest.rows import Defect, one_word, visible

YES = frozenset({"true", "1", "1.0", "t", "y", "yes"})
NO = frozenset({"false", "0", "0.0", "f", "n", "no"})
_WRAPPERS = frozenset({"$oid", "$numberInt", "$numberLong", "$numberDouble", "$date"})  # objects of one: MongoDB's
_INTEGER = re.compile(r"([+-]?\d+)\.0*")
_EXACT = 2**53  # a float above it has lost digits, so that it may be another id
_FROM_ZERO = 0.5  # as many rows of rank 0 as of rank 1, times this, and ranks begin with 0


def unwrapped(value: Any) -> Any:
    """The value; what is inside of a list of one, as search engines and data frames write fields."""
    while not isinstance(value, str):
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        elif isinstance(value, dict) and len(value) == 1 and not _WRAPPERS.isdisjoint(value):
            value = next(iter(value.values()))
        else:
            break
    return value


def whole_number(value: Any) -> int | None:
    """A number that is whole, whichever type it has; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, int):
        return value
    integer = int(value) if math.isfinite(value) else _EXACT
    return integer if integer == value and abs(integer) < _EXACT else None


def as_text(value: Any) -> str:
    """Text, stripped; Defect `missing_field`, `wrong_type` or `invalid_utf8`."""
    value = unwrapped(value)
    if value is None:
        raise Defect("missing_field")
    if not isinstance(value, str):
        raise Defect("wrong_type")
    if not value.isascii():
        try:
            value.encode("utf-8")  # half a surrogate pair, from a JSON escape or from bytes that are no UTF-8
        except UnicodeEncodeError:
            raise Defect("invalid_utf8") from None
    return value.strip()


def as_query(value: Any) -> str:
    """What was searched for; a number is the text that spells it. Defect as of `as_text`."""
    value = unwrapped(value)
    if isinstance(value, float) and whole_number(value) is None and math.isfinite(value):
        return repr(value)
    number = whole_number(value)
    return as_text(value) if number is None else _digits(number)


def as_id(value: Any) -> str:
    """An id; whole numbers count as text. Defect `bad_id` as of `visible`, else those of `as_text`."""
    if isinstance(value, str):
        return visible(as_text(value))
    number = whole_number(value := unwrapped(value))
    return visible(as_text(value)) if number is None else _digits(number)


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # of more digits than Python spells
        raise Defect("bad_id") from None


def text_field(row: Mapping[str, Any], *names: str, optional: bool = False) -> str:
    """A string of the row under the first of these names that it has, stripped; Defect as of `as_text`."""
    value = next((row[name] for name in names if row.get(name) is not None), None)
    return "" if optional and value in (None, []) else as_text(value)


def id_field(row: Mapping[str, Any], *names: str) -> str:
    """An id of the row, under the first of these names that it has; Defect `bad_id` when it is no word to be seen."""
    return one_word(as_id(next((row[name] for name in names if row.get(name) is not None), None)))


class Ids:
    """Finds which id of a table a text names: itself, else the same in another program's spelling.

    A data frame with a gap writes 17 as 17.0, and a file system composes letters differently.
    """

    def __init__(self, ids: Collection[str]) -> None:
        self.ids = ids

    def find(self, text: str) -> str | None:
        """The id, or None."""
        if text in self.ids:
            return text
        if (number := _INTEGER.fullmatch(text)) and number[1] in self.ids:
            return number[1]
        if text.isdigit() and f"{text}.0" in self.ids:
            return f"{text}.0"
        return None if text.isascii() else self._by_composed_form.get(normalize("NFC", text)) or None

    @cached_property
    def _by_composed_form(self) -> dict[str, str]:
        """The ids that are not ASCII; "" for a form of two."""
        by_form: dict[str, str] = {}
        for original in self.ids:
            if not original.isascii():
                form = normalize("NFC", original)
                by_form[form] = "" if form in by_form else original
        return by_form


@dataclass(frozen=True)
class Reading:
    """How a log spells what could be mistaken: settings of its source, or told by its first rows."""

    rank_from: int = 1
    clicked: frozenset[str] = frozenset()
    """Spellings of a click, folded; none: YES, or every value that is not in `passed`."""
    passed: frozenset[str] = frozenset()
    blank_is_no: bool = False

    def rank(self, value: Any) -> int:
        """A rank of 1 and above; Defect `missing_field` or `bad_rank`."""
        return rank_of(value, self.rank_from) + 1 - self.rank_from

    def is_clicked(self, value: Any) -> bool:
        """Whether a result was clicked; Defect `missing_field` or `bad_clicked`."""
        if value is True or value is False:
            return bool(value)
        text = folded(value)
        clicked, passed = self.clicked, self.passed
        if not clicked and not passed:
            clicked, passed = YES, NO | {""} if self.blank_is_no else NO
        if text in passed or (not passed and text not in clicked):
            return False
        if text in clicked or not clicked:
            return True
        raise Defect("bad_clicked" if text else "missing_field")


def folded(value: Any) -> str:
    """A value as `clicked` compares it: "" for none at all."""
    value = unwrapped(value)
    if value is None or value == [] or (isinstance(value, float) and math.isnan(value)):
        return ""
    try:
        return str(value).strip().lower()
    except ValueError:  # a number of thousands of digits
        return "number"


def rank_of(value: Any, lowest: int) -> int:
    """A rank as it is spelled, from `lowest` on: `3`, `3.0`; Defect `missing_field` or `bad_rank`."""
    value = unwrapped(value)
    if value is None or value == "":
        raise Defect("missing_field")
    if isinstance(value, str):
        text = value.strip()
        spelled = _INTEGER.fullmatch(text)
        try:
            value = int(spelled[1] if spelled else text)
        except ValueError:
            raise Defect("bad_rank") from None
    rank = whole_number(value)
    if rank is None or not lowest <= rank < 2**31 - 1:
        raise Defect("bad_rank")
    return rank


def detect_rank_from(values: Iterable[Any]) -> int:
    """With which rank the first results have, by ranks of a log: 0 where that is as frequent as a first rank is."""
    counts = [0, 0]
    for value in values:
        try:
            rank = rank_of(value, 0)
        except Defect:
            continue
        if rank < 2:
            counts[rank] += 1
    return 0 if counts[0] and counts[0] >= _FROM_ZERO * counts[1] else 1


def detect_blank(values: Sequence[Any]) -> bool:
    """Whether a blank says no: some values say yes, some are blank, and none says no."""
    spellings = {folded(value) for value in values}
    return "" in spellings and not spellings.isdisjoint(YES) and spellings.isdisjoint(NO)
