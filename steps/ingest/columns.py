"""What a file calls the columns that are asked for, and what is between them."""

import csv
import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from slimtower.common.errors import UserError

_NAMED_COLUMNS = 20
_DELIMITERS = (",", ";", "\t", "|")


def their_names(ours: Iterable[str], has: Sequence[str]) -> dict[str, str]:
    """The file's name of each of these columns that it has: the same, else the only one alike.

    Names are alike that differ in case or in signs alone, as `Query ID` and `query_id`, `id` and `_id`.
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(has):
        alike.setdefault(_folded(name), []).append(name)
    matches = {name: [name] if name in has else alike.get(_folded(name), []) for name in ours}
    return {name: theirs[0] for name, theirs in matches.items() if len(theirs) == 1}


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def check_columns(
    path: Path, where: str, has: Sequence[str], required: Mapping[str, str], optional: Collection[str]
) -> dict[str, str]:
    """The file's names of the columns; UserError for a required one that it lacks, and for one that it has twice."""
    theirs = their_names((*required, *optional), has)
    for name, key in required.items():
        if name not in theirs:
            near = difflib.get_close_matches(name, has, n=1, cutoff=0.0)
            more = ", ..." if len(has) > _NAMED_COLUMNS else ""
            raise UserError(
                f"{path}: {where}: no column {name!r}, which params.yaml: {key} names; it has"
                f" {', '.join(has[:_NAMED_COLUMNS])}{more}{f'; did you mean {near[0]!r}?' if near else ''};"
                f" name the file's column in {key}"
            )
    for name in theirs.values():
        if has.count(name) > 1:
            raise UserError(
                f"{path}: {where}: {has.count(name)} columns are called {name!r}, and which one counts cannot be told;"
                " rename or leave out the others and write the file again"
            )
    return theirs


def detect_delimiter(header: str, kind: str, required: Collection[str]) -> str:
    """What is between the columns of a header: the sign that the ending promises, else one that gives all required."""
    promised = "\t" if kind == "tsv" else ","
    for sign in (promised, *_DELIMITERS):
        try:
            names = next(csv.reader([header], delimiter=sign), [])
        except csv.Error:
            continue
        if len(their_names(required, [name.strip() for name in names])) == len(required):
            return sign
    return promised
