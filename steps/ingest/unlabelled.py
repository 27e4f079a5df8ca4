"""The file of unlabelled queries: a TSV of one column (text) or two (source, text), plain or gzip."""

from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_text
from steps.core.texts import fold
from steps.ingest.params import UNLABELLED_QUERIES
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, LeftOut, decode, read_lines
from steps.ingest.source_data import UNLABELLED, Query

_TABLES = ("jsonl", "json", "ndjson", "csv", "parquet")


def read_unlabelled(path: Path, *, max_query_words: int, max_reject_ratio: float, rejects: Rejects) -> list[Query]:
    """Read the file's distinct queries (after folding), their ids made from their text.

    Raises UserError when the file is missing, is a table by its ending, has no usable row, or too many rows are defect.
    """
    name = UNLABELLED_QUERIES
    if not path.is_file():
        raise UserError(f'params.yaml: ingest.{name}: no file {path}; name a TSV of queries, or "" for none')
    if (kind := path.name.lower().removesuffix(".gz").rpartition(".")[2]) in _TABLES:
        raise UserError(
            f"params.yaml: ingest.{name}: {path} is {kind.upper()}, whose rows would be read as queries whole; give a"
            " text file, a query on each line"
        )
    source = f"{name}/{path.name}"
    queries: dict[str, Query] = {}
    for line, raw in read_lines(path):
        rejects.count_row(source)
        try:
            text = _text(raw, max_query_words)
            key = fold(text)
            if not key:
                raise Defect("empty_text")
        except Defect as defect:
            rejects.add_defect(source, line, defect, raw)
            continue
        if key in queries:
            rejects.add(source, line, "duplicate_text", raw, defect=False)
        else:
            queries[key] = Query(f"{name}/{sha256_text(key)[:16]}", name, text, UNLABELLED, source, line)
    rejects.check(source, path, max_reject_ratio)
    if not queries:
        raise UserError(f'{path}: holds no query; name another file in ingest.{name}, or "" for none')
    return list(queries.values())


def _text(raw: bytes, max_query_words: int) -> str:
    columns = decode(raw).split("\t")
    if len(columns) > 2:
        raise Defect("too_many_columns")
    text = columns[-1].strip()
    if len(text.split()) > max_query_words:
        raise LeftOut("query_too_long")
    return text
