"""Tables of relevance scores that a user brings: query, document, score, in the source's own ids."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.core.texts import fold
from steps.ingest.batches import Row
from steps.ingest.coded_columns import coded
from steps.ingest.rows import Defect, LeftOut
from steps.ingest.search_log import SearchLog, Tables
from steps.ingest.source import Document, LogSource, ReadContext, RelevanceColumns, ScoredSource, text_id
from steps.ingest.table_rows import PROBED_ROWS
from steps.ingest.values import Ids, as_id, as_query, unwrapped

_LARGEST = float(np.finfo(np.float32).max)


AMBIGUOUS = -1  # in place of a query's number, for an id that a log gives to two texts


def log_relevance(
    source: LogSource,
    context: ReadContext,
    log: SearchLog,
    numbers: Mapping[str, int],
    documents: Mapping[str, Document],
    facts: dict[str, Any],
) -> pa.Table | None:
    """The relevance table of a log's source, None if it names none.

    `numbers` of the queries, or AMBIGUOUS, and `documents` are by original id.
    """
    if not source.relevance:
        return None
    ids = [text_id(source.name, text) for text in log.keys]
    return read_relevance(
        source,
        context,
        facts=facts,
        by_id={original: "" if number == AMBIGUOUS else ids[number] for original, number in numbers.items()},
        by_text=dict(zip(log.keys, ids, strict=True)),
        documents={original: document.doc_id for original, document in documents.items()},
    )


def read_relevance(
    source: ScoredSource,
    context: ReadContext,
    *,
    facts: dict[str, Any],
    by_id: Mapping[str, str],
    documents: Mapping[str, str],
    by_text: Mapping[str, str] | None = None,
) -> pa.Table:
    """The table `relevance` of a source, sorted; of equal pairs the highest score, how many being one of the `facts`.

    `by_id` and `by_text` give our id of a query by the source's id and by its folded text, `documents` that of a
    document. Only a log has `by_text`; scores of queries outside its window are no defects.
    Raises UserError for a missing file or column, too many defect rows, or when no row gives a score.
    """
    key, columns, rejects = context.key, source.relevance_columns, context.rejects
    by_text, is_log = by_text or {}, by_text is not None
    tables = Tables(source, "relevance", context)
    required = {getattr(columns, ours): f"{key}.relevance_columns.{ours}" for ours in ("doc_id", "score")}
    named = columns.model_fields_set & {"query_id", "query"}
    required |= {getattr(columns, ours): f"{key}.relevance_columns.{ours}" for ours in sorted(named)}
    naming = (columns.query_id, columns.query)
    queries, query_numbers = _numbered(chain(by_id.values(), by_text.values()))
    doc_ids, document_numbers = _numbered(documents.values())
    pairs, scores = array("q"), array("f")
    row_count = 0
    known_queries, known_documents = Ids(by_id), Ids(documents)
    for name, named_rows in groupby(tables.rows(required, naming), itemgetter(0)):
        for row in _named((row for _, row in named_rows), tables.files[name], naming, key):
            row_count += 1
            with rejects.guard(name, row.line, row.raw):
                query = _query(row, columns, by_id, known_queries, by_text)
                if query is None:
                    raise LeftOut("unknown_query") if is_log else Defect("unknown_query")
                document = known_documents.find(as_id(row.values.get(columns.doc_id)))
                if document is None:
                    raise Defect("unknown_document")
                score = _score(row.values.get(columns.score))
                pairs.append(query_numbers[query] * len(doc_ids) + document_numbers[documents[document]])
                scores.append(score)
    tables.check(has_settings=is_log)
    if row_count and not pairs:
        raise UserError(
            f"params.yaml: {key}.relevance: none of the {row_count} rows of {source.relevance!r} gives a score"
            f" ({rejects.counts(tables.name)}); name another table or fix {key}.relevance_columns"
        )
    pair, values = np.array(pairs, dtype=np.int64), np.array(scores, dtype=np.float32)
    order = np.lexsort((-values, pair))
    pair, first = np.unique(pair[order], return_index=True)  # of several scores the highest
    if repeated := len(pairs) - len(pair):
        facts["relevance_pairs_repeated"] = repeated
    query_at, document_at = np.divmod(pair, max(len(doc_ids), 1))
    ids = {
        "query_id": coded(query_at, pa.array(queries, pa.string())),
        "doc_id": coded(document_at, pa.array(doc_ids, pa.string())),
    }
    return pa.table(ids | {"score": pa.array(values[order][first])})


def _numbered(ids: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    in_order = sorted(set(ids))
    return in_order, {text: number for number, text in enumerate(in_order)}


def _named(rows: Iterator[Row], path: Path, naming: Sequence[str], key: str) -> Iterator[Row]:
    """The rows; UserError when none of the first has a column that names its query."""
    probed = list(islice(rows, PROBED_ROWS))
    if probed and not any(name in row.values for row in probed for name in naming):
        raise UserError(
            f"{path}: line {probed[0].line}: neither {naming[0]!r} nor {naming[1]!r}, so the scores"
            f" name no query; name the file's column in params.yaml: {key}.relevance_columns"
        )
    return chain(probed, rows)


def _query(
    row: Row, columns: RelevanceColumns, by_id: Mapping[str, str], ids: Ids, by_text: Mapping[str, str]
) -> str | None:
    """Our id of the query that the row names, by id where it has one; None for an unknown one."""
    original = row.values.get(columns.query_id)
    if original is not None and original != "":
        matched_id = ids.find(as_id(original))
        query = None if matched_id is None else by_id[matched_id]
        if query == "":
            raise Defect("ambiguous_query")
        return query
    return by_text.get(fold(as_query(row.values.get(columns.query))))


def _score(value: Any) -> float:
    value = unwrapped(value)
    if value is None or value == "":
        raise Defect("missing_field")
    try:
        score = float(value)
    except (ValueError, TypeError, ArithmeticError):  # a whole number of 400 digits
        raise Defect("bad_score") from None
    if isinstance(value, bool) or not math.isfinite(score) or abs(score) > _LARGEST:
        raise Defect("bad_score")
    return score
