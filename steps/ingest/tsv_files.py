"""The user's own TSV files, plain or gzip: unlabelled queries, and the importance of terms."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.core.tables import SCHEMAS
from steps.core.texts import fold, words
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, LeftOut, decode, read_lines
from steps.ingest.source import MAX_QUERY_WORDS, UNLABELLED, UNLABELLED_QUERIES, Query, text_id

_TABLES = ("jsonl", "json", "ndjson", "csv", "parquet")
TERM_SCORES = "term_scores"


def read_unlabelled(path: Path, rejects: Rejects) -> list[Query]:
    """Read the file's distinct queries (after folding), their ids made from their text.

    Raises UserError when the file is a table by its ending, has no usable row, or too many rows are defect.
    """
    name = UNLABELLED_QUERIES
    if (kind := path.name.lower().removesuffix(".gz").rpartition(".")[2]) in _TABLES:
        raise UserError(
            f"params.yaml: ingest.{name}: {path} is {kind.upper()}, whose rows would be read as queries whole; give a"
            " text file, a query on each line"
        )
    source = f"{name}/{path.name}"
    queries: dict[str, Query] = {}
    for line, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
            text = _text(raw)
            key = fold(text)
            if not key:
                raise Defect("empty_text")
            if key in queries:
                raise LeftOut("duplicate_text")
            queries[key] = Query(text_id(name, key), name, text, UNLABELLED, source, line)
    if not queries:
        raise UserError(f'{path}: holds no query; name another file in ingest.{name}, or "" for none')
    return list(queries.values())


def _text(raw: bytes) -> str:
    columns = decode(raw).split("\t")
    if len(columns) > 2:
        raise Defect("too_many_columns")
    text = columns[-1].strip()
    if len(text.split()) > MAX_QUERY_WORDS:
        raise LeftOut("query_too_long")
    return text


def read_term_scores(path: Path, rejects: Rejects) -> pa.Table:
    """The table `term_scores`, sorted by term; terms are lower-cased, of equal ones the first stays.

    Raises UserError when the file has no usable row, or too many rows are defect.
    """
    source = f"{TERM_SCORES}/{path.name}"
    scores: dict[str, float] = {}
    lines = ((line, raw) for line, raw in read_lines(path) if line > 1 or raw.lower() != b"term\tscore")
    for _, raw, guard in rejects.guarded(lines, source, path):
        with guard:
            term, score = _parse(raw)
            if term in scores:
                raise Defect("duplicate_term")
            scores[term] = score
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
