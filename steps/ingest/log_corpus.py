"""The documents that a log names, from tables with columns of the user's own names."""

from slimtower.common.errors import UserError
from steps.ingest.log_tables import Tables
from steps.ingest.rows import one_word
from steps.ingest.source import LogSource, ReadContext
from steps.ingest.source_data import Document
from steps.ingest.splits import JudgedRows
from steps.ingest.values import as_id, text_field


def read_corpus(source: LogSource, context: ReadContext) -> dict[str, Document]:
    """Documents by their original id.

    Raises UserError for a missing file or column, an empty corpus or too many defect rows.
    """
    key, columns = context.key, source.corpus_columns
    named = {"doc_id", "content"} | columns.model_fields_set
    required = {getattr(columns, ours): f"{key}.corpus_columns.{ours}" for ours in sorted(named)}
    corpus, tables = JudgedRows(source.name), Tables(source, "corpus", context)
    for name, row in tables.rows(required, {columns.title, columns.topic}, gap=columns.content):
        with context.rejects.guard(name, row.line, row.raw):
            doc_id = one_word(as_id(row.values.get(columns.doc_id)))
            title, topic = (text_field(row.values, column, optional=True) for column in (columns.title, columns.topic))
            content = text_field(row.values, columns.content, optional=bool(title))  # a product may have a title alone
            corpus.add_document(doc_id, title, content, topic)
    tables.check()
    if not corpus.documents:
        raise UserError(f"params.yaml: {key}.corpus: {source.corpus!r} holds no document; name another place")
    return corpus.documents
