"""Tables of relevance scores that a user brings: query, document, score, in the source's own ids."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from steps.core.errors import UserError
from steps.core.params.ingest import LogSource, RelevanceColumns
from steps.core.tables import SCHEMAS
from steps.core.texts import fold
from steps.ingest.log_splits import query_id
from steps.ingest.log_values import as_id, as_text
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect
from steps.ingest.search_log import SearchLog
from steps.ingest.source_data import Document
from steps.ingest.source_files import table_files
from steps.ingest.table_rows import Row, read_rows

_LARGEST = float(np.finfo(np.float32).max)


class QueryNames:
    """What a log calls its queries; a name of two different texts names neither."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def add(self, original: str, number: int) -> None:
        """Note that a row calls the query of this number by this id."""
        if self._number.setdefault(original, number) != number:
            self._number[original] = -1

    def ids(self, query_ids: list[str]) -> dict[str, str]:
        """Our id by their id; "" for a name of two texts."""
        return {original: query_ids[number] if number >= 0 else "" for original, number in self._number.items()}


def log_relevance(
    source: LogSource,
    log: SearchLog,
    names: QueryNames,
    documents: Mapping[str, Document],
    *,
    key: str,
    max_reject_ratio: float,
    rejects: Rejects,
) -> pa.Table | None:
    """The relevance table of a log's source, None where it names none; `documents` by original id."""
    if not source.relevance:
        return None
    ids = [query_id(source.name, text) for text in log.keys]
    return read_relevance(
        source.name,
        source.relevance,
        source.relevance_columns,
        key=key,
        by_id=names.ids(ids),
        by_text=dict(zip(log.keys, ids, strict=True)),
        documents={original: document.doc_id for original, document in documents.items()},
        max_reject_ratio=max_reject_ratio,
        rejects=rejects,
    )


def read_relevance(
    name: str,
    location: str,
    columns: RelevanceColumns,
    *,
    key: str,
    by_id: Mapping[str, str],
    by_text: Mapping[str, str],
    documents: Mapping[str, str],
    max_reject_ratio: float,
    rejects: Rejects,
) -> pa.Table:
    """The table `relevance` of a source, sorted; of equal pairs the highest score.

    `by_id` and `by_text` give our id of a query by the source's id and by its folded text, `documents` that of a
    document. Raises UserError for a missing file or column or too many defect rows.
    """
    wanted = {getattr(columns, ours): f"{key}.relevance_columns.{ours}" for ours in ("doc_id", "score")}
    named = columns.model_fields_set & {"query_id", "query"}
    wanted |= {getattr(columns, ours): f"{key}.relevance_columns.{ours}" for ours in sorted(named)}
    found: dict[tuple[str, str], float] = {}
    for file in table_files(location, f"{key}.relevance"):
        source = f"{name}/relevance/{file.name}"
        rows = read_rows(
            file.path, wanted=wanted, optional=(columns.query_id, columns.query), source=source, rejects=rejects
        )
        for at, row in enumerate(rows):
            if at == 0 and columns.query_id not in row.values and columns.query not in row.values:
                raise UserError(
                    f"{file.path}: line {row.line}: neither {columns.query_id!r} nor {columns.query!r}, so the scores"
                    f" name no query; name the file's column in params.yaml: {key}.relevance_columns"
                )
            try:
                query = _query(row, columns, by_id, by_text)
                document = documents.get(as_id(row.values.get(columns.doc_id)))
                if document is None:
                    raise Defect("unknown_document")
                score = _score(row.values.get(columns.score))
            except Defect as defect:
                rejects.add(source, row.line, defect.reason, row.raw())
                continue
            pair = query, document
            found[pair] = max(score, found.get(pair, score))
        rejects.check(source, file.path, max_reject_ratio)
    pairs = sorted(found)
    columns_of_table = [[query for query, _ in pairs], [doc for _, doc in pairs], [found[pair] for pair in pairs]]
    return pa.table(columns_of_table, schema=SCHEMAS["relevance"])


def _query(row: Row, columns: RelevanceColumns, by_id: Mapping[str, str], by_text: Mapping[str, str]) -> str:
    """Our id of the query that the row names, by id where it has one."""
    original = row.values.get(columns.query_id)
    if original is not None and original != "":
        query = by_id.get(as_id(original))
        if query == "":
            raise Defect("ambiguous_query")
    else:
        query = by_text.get(fold(as_text(row.values.get(columns.query))))
    if query is None:
        raise Defect("unknown_query")
    return query


def _score(value: Any) -> float:
    if value is None or value == "":
        raise Defect("missing_field")
    try:
        score = float(value)
    except (ValueError, TypeError):
        raise Defect("bad_score") from None
    if isinstance(value, bool) or not math.isfinite(score) or abs(score) > _LARGEST:
        raise Defect("bad_score")
    return score
