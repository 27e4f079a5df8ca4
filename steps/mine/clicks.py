"""The click log as judgements: what each training query was shown and what was clicked."""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir
import pyarrow as pa

from steps.core.files import sha256_text
from steps.core.texts import fold
from steps.mine.engine import Engine

_TEXT_KEYS = pa.schema([("doc_id", pa.string()), ("text_key", pa.string())])


class Judgements(NamedTuple):
    """The log of the training queries."""

    table: ir.Table
    """(query_id, doc_id, shown, clicks, text_key): one row for each document that a query was shown."""
    impressions: int
    """Rows of the log."""
    dropped: dict[str, int]
    """Rows of the log left out, by reason."""


def judgements(engine: Engine, impressions: ir.Table, queries: ir.Table, corpus: ir.Table) -> Judgements:
    """Count what each training query was shown and what was clicked; rows of other queries are left out and counted."""
    splits = queries.select("query_id", "split")
    known = corpus.select(known_id="doc_id")
    joined = impressions.left_join(splits, "query_id").left_join(known, impressions.doc_id == known.known_id)
    whose = joined.split.fill_null("unknown")
    reason = ibis.cases((whose != "train", whose + "_query"), (joined.known_id.isnull(), "unknown_document"), else_="")
    rows = engine.keep(joined.select("query_id", "doc_id", "clicked", reason=reason))
    counts = rows.group_by("reason").aggregate(rows=lambda t: t.count())
    by_reason = {row["reason"]: row["rows"] for row in engine.rows(counts).to_pylist()}
    used = rows.filter(rows.reason == "")
    pairs = used.group_by("query_id", "doc_id").aggregate(
        shown=lambda t: t.count(), clicks=lambda t: t.count(where=t.clicked)
    )
    pairs = engine.keep(pairs)
    keyed = pairs.join(_text_keys(engine, corpus.semi_join(pairs, "doc_id")), "doc_id")
    table = engine.keep(keyed.select("query_id", "doc_id", "shown", "clicks", "text_key"))
    dropped = {name: by_reason[name] for name in sorted(by_reason) if name}
    return Judgements(table, sum(by_reason.values()), dropped)


def _text_keys(engine: Engine, documents: ir.Table) -> ir.Table:
    """(doc_id, text_key): equal keys mean equal folded content; a document without content goes by its title.

    Titles are left out of the key because copies of one text often differ in title alone.
    """

    def convert(batch: pa.RecordBatch) -> pa.Table:
        titles, contents = batch.column("title").to_pylist(), batch.column("content").to_pylist()
        keys = [sha256_text(fold(content) or fold(title)) for title, content in zip(titles, contents, strict=True)]
        return pa.table([batch.column("doc_id"), pa.array(keys, pa.string())], schema=_TEXT_KEYS)

    return engine.map_batches(documents.select("doc_id", "title", "content"), convert, _TEXT_KEYS, "texts of documents")
