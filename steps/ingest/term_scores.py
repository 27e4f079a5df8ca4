"""The user's own importance of terms: a TSV of term and score, plain or gzip."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.core.tables import SCHEMAS
from steps.core.texts import words
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, decode, read_lines

TERM_SCORES = "term_scores"


def read_term_scores(path: Path, *, max_reject_ratio: float, rejects: Rejects) -> pa.Table:
    """The table `term_scores`, sorted by term; terms are lower-cased, of equal ones the first stays.

    Raises UserError when the file is missing, has no usable row, or too many rows are defect.
    """
    if not path.is_file():
        raise UserError(
            f'params.yaml: ingest.term_scores: no file {path}; name a TSV of "term<TAB>score", or "" for none'
        )
    source = f"{TERM_SCORES}/{path.name}"
    scores: dict[str, float] = {}
    for line, raw in read_lines(path):
        if line == 1 and raw.lower() == b"term\tscore":
            continue
        rejects.count_row(source)
        try:
            term, score = _parse(raw)
            if term in scores:
                raise Defect("duplicate_term")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        scores[term] = score
    rejects.check(source, path, max_reject_ratio)
    if not scores:
        raise UserError(f'{path}: holds no term; name another file in ingest.term_scores, or "" for none')
    terms = sorted(scores)
    return pa.table([terms, [scores[term] for term in terms]], schema=SCHEMAS[TERM_SCORES])


def _parse(raw: bytes) -> tuple[str, float]:
    columns = decode(raw).split("\t")
    if len(columns) != 2:
        raise Defect("missing_field" if len(columns) < 2 else "too_many_columns")
    term = words(columns[0])
    if len(term) != 1:
        raise Defect("not_one_word")
    try:
        score = float(columns[1])
    except ValueError:
        raise Defect("bad_score") from None
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.float32(score)
    if not (rounded > 0 and np.isfinite(rounded)):
        raise Defect("bad_score")
    return term[0], score
