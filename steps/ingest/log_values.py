"""Values of a search log, whichever type its file gives them: text from CSV, numbers and booleans from Parquet."""

from typing import Any

from steps.ingest.rows import Defect, visible

_CLICKED = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def as_text(value: Any) -> str:
    """Text, stripped; Defect `missing_field`, `wrong_type` or `invalid_utf8`."""
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


def as_id(value: Any) -> str:
    """An id; whole numbers count as text. Defect `bad_id` as of `visible`, else those of `as_text`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return visible(as_text(value))


def as_rank(value: Any) -> int:
    """A rank of 1 and above; Defect `missing_field` or `bad_rank`."""
    if value is None or value == "":
        raise Defect("missing_field")
    try:
        rank = int(value)
        if isinstance(value, bool) or not (isinstance(value, str) or rank == value) or not 1 <= rank < 2**31:
            raise Defect("bad_rank")
    except (ValueError, TypeError, OverflowError):
        raise Defect("bad_rank") from None
    return rank


def as_clicked(value: Any) -> bool:
    """A boolean, 0 or 1, or either as text; Defect `missing_field` or `bad_clicked`."""
    if value is True or value is False:
        return bool(value)
    if value is None or value == "":
        raise Defect("missing_field")
    clicked = _CLICKED.get(str(value).strip().lower())
    if clicked is None:
        raise Defect("bad_clicked")
    return clicked
