"""Relevance judgements of a BEIR folder: query id, document id, grade, and where there is one a second label.

The second label says whether the document satisfied: ScalingNote's test set has both.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slimtower.common.errors import UserError
from steps.ingest.qrels_layout import detect_layout, named_queries
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, LeftOut, read_lines, regular_file
from steps.ingest.values import Ids

QRELS_SPLITS = ("test", "dev", "train")  # in this order: a query of two files stays with the first
_ABOUT = re.compile(r"(?i)(readme|licen[cs]e)\b|.*\.md$")  # files that judge nothing


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
    queries: Ids,
    documents: Ids,
    judgements: Judgements,
    rejects: Rejects,
    *,
    columns: Sequence[str] = (),
    key: str = "",
) -> None:
    """Add one qrels file to the judgements; UserError as of `detect_layout`."""
    source = f"{name}/qrels/{path.name}"
    layout, line_of_it = detect_layout(path, columns, queries, documents, key)
    if line_of_it:
        print(f"ingest: {name}: {line_of_it}", file=sys.stderr)
    for line, raw in read_lines(path):
        if line == 1 and layout.has_header:
            continue
        rejects.count_row(source)
        try:
            # A query named by a broken row is still this split's: else it would be an unlabelled one, and train.
            query_id = queries.find(layout.query(raw))
            if query_id is not None and judgements.named.setdefault(query_id, split) != split:
                raise LeftOut("query_in_two_splits")
            _, document, grade, satisfaction = layout.judgement(raw)
            if query_id is None:
                raise Defect("unknown_query")
            doc_id = documents.find(document)
            if doc_id is None:
                raise Defect("unknown_document")
            if (query_id, doc_id) in judgements.grades:
                raise Defect("duplicate_judgement")
        except Defect as defect:
            rejects.add_defect(source, line, defect, raw)
            continue
        judgements.grades[query_id, doc_id] = grade
        if satisfaction is not None:
            judgements.satisfaction[query_id, doc_id] = satisfaction


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
