"""The documents that a log names, from tables with columns of the user's own names."""

from slimtower.common.errors import UserError
from steps.ingest.locations import table_files
from steps.ingest.rows import one_word
from steps.ingest.source import LogSource, ReadContext
from steps.ingest.source_data import Document
from steps.ingest.splits import JudgedRows
from steps.ingest.table_rows import Gaps, read_rows
from steps.ingest.values import as_id, text_field


def read_corpus(source: LogSource, context: ReadContext) -> dict[str, Document]:
    """Documents by their original id.

    Raises UserError for a missing file or column, an empty corpus or too many defect rows.
    """
    key, columns, rejects = context.key, source.corpus_columns, context.rejects
    named = {"doc_id", "content"} | columns.model_fields_set
    required = {getattr(columns, ours): f"{key}.corpus_columns.{ours}" for ours in sorted(named)}
    optional = {columns.title, columns.topic}
    corpus = JudgedRows(source.name)
    files = table_files(source.corpus, f"{key}.corpus")
    gaps = Gaps(columns.content) if len(files) > 1 else None  # a small file may be all products with a title alone
    for file in files:
        name = f"{source.name}/corpus/{file.name}"
        rows = read_rows(
            file.path, required=required, optional=optional, source=name, rejects=rejects, gaps=gaps, form=source.form
        )
        for row in rows:
            with rejects.guard(name, row.line, row.raw):
                doc_id = one_word(as_id(row.values.get(columns.doc_id)))
                title, topic = (text_field(row.values, each, optional=True) for each in (columns.title, columns.topic))
                content = text_field(row.values, columns.content, optional=bool(title))  # a product may have that alone
                corpus.add_document(doc_id, title, content, topic)
    rejects.check(f"{source.name}/corpus", source.corpus, has_settings=True)
    if gaps:
        gaps.check(required)
    if not corpus.documents:
        raise UserError(f"params.yaml: {key}.corpus: {source.corpus!r} holds no document; name another place")
    return corpus.documents
