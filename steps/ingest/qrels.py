"""Relevance judgements of a BEIR folder: TSV of query id, document id, grade, and where there is one a second label.

The second label says whether the document satisfied: ScalingNote's test set has both.
"""

import re
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from steps.core.errors import UserError
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, decode, grade_of, read_lines, regular_file

QRELS_SPLITS = ("test", "dev", "train")  # in this order: a query of two files stays with the first
_HEADER = {"query-id", "query_id", "qid"}
_DOCUMENTS = (b"corpus-id", b"corpus_id")  # what BEIR's header calls the second column
_ABOUT = re.compile(r"(?i)(readme|licen[cs]e)\b|.*\.md$")  # files that judge nothing
_ITERATIONS = (b"0", b"Q0")  # what TREC's second column holds


@dataclass
class Judgements:
    """Grades by (query id, document id), from 1 on relevant, and which qrels file each query belongs to."""

    grades: dict[tuple[str, str], int] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    satisfaction: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def not_relevant(self) -> int:
        """Pairs that were judged not relevant."""
        return sum(grade <= 0 for grade in self.grades.values())

    def splits(self) -> dict[str, str]:
        """Split of every query with a relevant document, in the order of the files."""
        return {query_id: self.named[query_id] for (query_id, _), grade in self.grades.items() if grade > 0}


def read_judgements(
    name: str,
    path: Path,
    split: str,
    queries: Container[str],
    documents: Container[str],
    judgements: Judgements,
    rejects: Rejects,
) -> None:
    """Add one qrels file to the judgements; UserError where it is TREC's: it would judge document `0` by other ids."""
    if _is_trec(path):
        raise UserError(
            f"{path}: the second of four columns is 0 throughout, as in TREC's qrels: leave it out, for query, document"
            " and grade; where a document is called so, begin with a line query-id<TAB>corpus-id<TAB>score<TAB>label"
        )
    source = f"{name}/qrels/{path.name}"
    for line, raw in read_lines(path):
        if line == 1 and _query_of(raw).lower() in _HEADER:
            continue
        rejects.count_row(source)
        try:
            # A query named by a broken row is still this split's: else it would be an unlabelled one, and train.
            query_id = _query_of(raw)
            if query_id in queries and judgements.named.setdefault(query_id, split) != split:
                rejects.add(source, line, "query_in_two_splits", raw, defect=False)
                continue
            query_id, doc_id, grade, satisfaction = _parse(raw)
            if query_id not in queries:
                raise Defect("unknown_query")
            if doc_id not in documents:
                raise Defect("unknown_document")
            if (query_id, doc_id) in judgements.grades:
                raise Defect("duplicate_judgement")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        judgements.grades[query_id, doc_id] = grade
        if satisfaction is not None:
            judgements.satisfaction[query_id, doc_id] = satisfaction


def _is_trec(path: Path) -> bool:
    """Whether every row is `query 0 document grade`, several queries have one, and no header calls that BEIR's."""
    queries = set[bytes]()
    for line, raw in read_lines(path):
        columns = [column.strip() for column in raw.split(b"\t")]
        if line == 1 and _query_of(raw).lower() in _HEADER:
            if columns[1:] and columns[1].lower() in _DOCUMENTS:
                return False
        elif len(columns) == 4 and columns[1] in _ITERATIONS:
            queries |= {columns[0]} if len(queries) < 2 else set()
        elif len(columns) > 2:
            return False
    return len(queries) > 1


def _query_of(raw: bytes) -> str:
    """The query id of a row, be the rest as it may."""
    return raw.split(b"\t")[0].decode("utf-8", "replace").strip()


def _parse(raw: bytes) -> tuple[str, str, int, int | None]:
    columns = [column.strip() for column in decode(raw).split("\t")]
    if len(columns) not in (3, 4) or not columns[0] or not columns[1]:
        raise Defect("missing_field")
    return columns[0], columns[1], grade_of(columns[2]), grade_of(columns[3]) if columns[3:] and columns[3] else None


def other_qrels(folder: Path) -> tuple[dict[str, int], set[str]]:
    """Rows of each qrels file that is no split, and the ids of the queries that those files name; there may be none.

    UserError for a file that may hold judgements and is no .tsv.
    """
    rows: dict[str, int] = {}
    named: set[str] = set()
    known = {f"{split}.tsv{suffix}" for split in QRELS_SPLITS for suffix in ("", ".gz")}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in known or path.name.startswith(".") or _ABOUT.match(path.name):
            continue
        if not path.name.endswith((".tsv", ".tsv.gz")):
            raise UserError(
                f"{path}: judgements are read from .tsv alone, and the queries of this file would train unseen; rename"
                " it to .tsv, or move it away"
            )
        regular_file(path)
        ids = [_query_of(raw) for _, raw in read_lines(path)]
        if ids and ids[0].lower() in _HEADER:
            ids = ids[1:]
        rows[path.name] = len(ids)
        named.update(ids)
    return rows, named
