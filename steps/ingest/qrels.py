"""Relevance judgements of a BEIR folder: query id, document id, grade, and perhaps a second label, satisfaction.

A header, a setting, or which ids join tells what the columns of a file are.
"""

import csv
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, decode, grade_of, read_lines, regular_file
from steps.ingest.splits import JudgedRows
from steps.ingest.values import Ids

_PROBED_ROWS = 10_000
_RIVAL = 0.8  # share of the rows that join under one reading, from which on another one puts it in doubt
_QUERY = {"queryid", "qid", "query", "topic", "topicid", "questionid"}
_DOCUMENT = {"corpusid", "docid", "docno", "doc", "document", "documentid", "pid", "passageid", "passage", "productid"}
_GRADE = {"score", "relevance", "rel", "grade", "judgement", "judgment", "rating", "gain"}
_LABEL = {"label", "satisfaction", "sat", "satisfied"}
_UNREAD = {"", "index", "unnamed0", "iter", "iteration", "q0", "0"}  # a data frame's index, TREC's second column
_LETTERS = {"q": "query", "d": "document", "g": "grade", "l": "label", "-": "-"}
_READINGS = {2: ("qd",), 3: ("qdg", "-qd"), 4: ("qdgl", "q-dg", "-qdg"), 5: ("-qdgl", "-q-dg")}  # the first: BEIR's
QRELS_SPLITS = ("test", "dev", "train")  # in this order: a query of two files stays with the first
_ABOUT = re.compile(r"(?i)(readme|licen[cs]e)\b|.*\.md$")  # files that judge nothing


class Layout(NamedTuple):
    """The place of each column, -1 for one that is not there; what is between them; whether line 1 is a header."""

    columns: str
    delimiter: str
    has_header: bool = False

    def position(self, letter: str) -> int:
        return self.columns.find(letter)

    def cells(self, text: str) -> list[str]:
        """The fields of a row, stripped."""
        return [cell.strip() for cell in _cells(text, self.delimiter)]

    def query(self, raw: bytes) -> str:
        """The query's id in a row, even if the rest of the row is malformed."""
        cells = self.cells(raw.decode("utf-8", "replace"))
        return cells[self.position("q")] if len(cells) > self.position("q") else ""

    def judgement(self, raw: bytes) -> tuple[str, int, int | None]:
        """Document, grade (1 where there is no such column) and second label; Defect where one is not there."""
        cells = self.cells(decode(raw))
        query, document, grade, label = (
            cells[position] if 0 <= position < len(cells) else "" for position in map(self.position, "qdgl")
        )
        if not query or not document or (self.position("g") >= len(cells)) or len(cells) > len(self.columns):
            raise Defect("missing_field")
        return document, grade_of(grade) if "g" in self.columns else 1, grade_of(label) if label else None

    def named(self) -> str:
        """The columns in words."""
        return ", ".join(_LETTERS[letter] for letter in self.columns)


def read_judgements(
    path: Path,
    split: str,
    queries: Ids,
    documents: Ids,
    rows: JudgedRows,
    rejects: Rejects,
    *,
    columns: Sequence[str],
    key: str,
) -> None:
    """Add one qrels file to the judgements; UserError as of `detect_layout`, and for too many defect rows."""
    source = f"{rows.name}/qrels/{path.name}"
    layout, line_of_it = detect_layout(path, columns, queries, documents, key)
    if line_of_it:
        print(f"ingest: {rows.name}: {line_of_it}", file=sys.stderr)
    for _, raw, guard in rejects.guarded(islice(read_lines(path), layout.has_header, None), source, path):
        with guard:
            # A query named by a broken row is still this split's: else it would be an unlabelled one, and train.
            query_id = queries.find(layout.query(raw))
            if query_id is not None:
                rows.name_query(query_id, split)
            document, grade, satisfaction = layout.judgement(raw)
            pair = rows.add_judgement(query_id, documents.find(document), grade)
            if satisfaction is not None:
                rows.satisfaction[pair] = satisfaction


def other_qrels(folder: Path, queries: Ids) -> tuple[dict[str, int], set[str]]:
    """Rows of each qrels file that is no split, and the ids of the queries that those files name; there may be none.

    UserError for a file that may hold judgements and is no .tsv.
    """
    rows: dict[str, int] = {}
    named: set[str] = set()
    split_files = {f"{split}.tsv{suffix}" for split in QRELS_SPLITS for suffix in ("", ".gz")}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in split_files or path.name.startswith(".") or _ABOUT.match(path.name):
            continue
        if not path.name.endswith((".tsv", ".tsv.gz")):
            raise UserError(
                f"{path}: judgements are read from .tsv alone, and the queries of this file would train unseen; rename"
                " it to .tsv, or move it away"
            )
        regular_file(path)
        rows[path.name], ids = named_queries(path, queries)
        named |= ids
    return rows, named


def detect_layout(path: Path, listed: Sequence[str], queries: Ids, documents: Ids, key: str) -> tuple[Layout, str]:
    """The layout of a file, and a line where it was told by its ids; `listed`: what the setting says its columns are.

    UserError where two readings join rows, and one does not join many more than the other; `key` names the source.
    """
    readings, rows = _possible(path)
    if listed:
        columns = "".join(letter for name in listed for letter, long in _LETTERS.items() if long == name)
        return readings[0]._replace(columns=columns), ""
    if len(readings) == 1:
        return readings[0], ""
    joins = {reading: _joining(rows, reading, queries, documents) for reading in readings}
    best = max(readings, key=lambda reading: joins[reading])  # of equal ones the first
    listing = "; ".join(f"{reading.named()}: {count:,} of {len(rows):,}" for reading, count in joins.items())
    if any(reading is not best and count and count >= _RIVAL * joins[best] for reading, count in joins.items()):
        yaml_columns = readings[-1].named().replace("-", '"-"')
        raise UserError(
            f"{path}: its columns can be read in several ways, and so many rows name a query and a document in each"
            f" ({listing}); say which is right, as qrels_columns: [{yaml_columns}] beside {key}, or begin the file with"
            " a line query-id, corpus-id, score"
        )
    return best, f"{path.name}: columns are taken for {best.named()} (rows that join: {listing})"


def named_queries(path: Path, queries: Ids) -> tuple[int, set[str]]:
    """Rows of a file that is no split, and the queries that it names under any reading."""
    readings, _ = _possible(path)
    count, named = 0, set[str]()
    for _, raw in islice(read_lines(path), readings[0].has_header, None):
        count += 1
        for reading in readings:
            query = reading.query(raw)
            named.add(queries.find(query) or query)
    return count, named


def _possible(path: Path) -> tuple[list[Layout], list[list[str]]]:
    """Layouts that the file may have, the documented one first, and its first rows."""
    lines = [raw.decode("utf-8", "replace") for _, raw in islice(read_lines(path), _PROBED_ROWS + 1)]
    first = lines[0] if lines else ""
    delimiter = "\t" if "\t" in first else "," if "," in first else ""
    names = [re.sub(r"[\W_]+", "", name.lower()) for name in _cells(first, delimiter)]
    has_header = bool(names) and (
        names[0] in {"queryid", "qid"} or not (_QUERY.isdisjoint(names) or _DOCUMENT.isdisjoint(names))
    )
    rows = [[cell.strip() for cell in _cells(line, delimiter)] for line in lines[has_header:]]
    width = max((len(row) for row in rows), default=0)
    columns = _by_names(names) if has_header else ""
    if columns:
        readings = [columns]
        if width > len(names):  # a second label without a name; or the names of rows, as R writes them
            readings = [columns if "l" in columns else f"{columns}l"]
            readings += [f"-{columns}"] if names[0] and _is_plausible(f"-{columns}", rows) else []
    else:
        readings = [candidate for candidate in _READINGS.get(width, ()) if _is_plausible(candidate, rows)]
        readings = readings or ["qdgl"]
    if readings == ["qdg"]:
        readings = ["qdgl"]  # the label may be missing in the first rows
    return [Layout(candidate, delimiter, has_header) for candidate in readings], rows


def _by_names(names: Sequence[str]) -> str:
    """The columns by their names; "" where no name is a document's."""
    letters = {}
    for letter, spellings in (("q", _QUERY), ("d", _DOCUMENT), ("g", _GRADE), ("l", _LABEL)):
        if position := next((f"{at}" for at, name in enumerate(names) if name in spellings), ""):
            letters[int(position)] = letter
    if "d" not in letters.values() or "q" not in letters.values():
        return ""
    if "g" not in letters.values():
        unnamed = [at for at, name in enumerate(names) if name not in _UNREAD and letters.get(at, "l") == "l"]
        letters |= {unnamed[0]: "g"} if unnamed else {}
    return "".join(letters.get(at, "-") for at in range(len(names)))


def _is_plausible(columns: str, rows: Sequence[Sequence[str]]) -> bool:
    """Whether the columns that are not read look so: row numbers are distinct, and an iteration is one for all."""
    for at, letter in enumerate(columns):
        distinct = {row[at] for row in rows if len(row) > at}
        if letter == "-" and not at and (2 * len(distinct) <= len(rows) or not all(map(str.isdigit, distinct))):
            return False
        if letter == "-" and at and len(distinct) > 1:
            return False
        if columns == "-qd" and letter == "d" and (len(rows) < 3 or 2 * len(distinct) <= len(rows)):
            return False  # grades
    return True


def _joining(rows: Iterable[Sequence[str]], layout: Layout, queries: Ids, documents: Ids) -> int:
    """Distinct pairs of a known query and a known document, with a grade."""
    query, document, grade = map(layout.position, "qdg")
    pairs = set()
    for row in rows:
        with suppress(Defect):
            if len(row) > max(query, document, grade) and (grade < 0 or grade_of(row[grade]) is not None):
                pairs.add((queries.find(row[query]), documents.find(row[document])))
    return sum(None not in pair for pair in pairs)


def _cells(text: str, delimiter: str) -> list[str]:
    if delimiter != ",":
        return text.split(delimiter or None)
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return text.split(",")
