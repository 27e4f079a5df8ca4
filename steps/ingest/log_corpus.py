"""The documents that a log names, from tables with columns of the user's own names."""

from slimtower.common.errors import UserError
from steps.ingest.locations import table_files
from steps.ingest.params import CorpusColumns
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, one_word
from steps.ingest.source_data import Document
from steps.ingest.table_rows import Form, Gaps, read_rows
from steps.ingest.values import as_id, text_field


def read_corpus(
    name: str, location: str, columns: CorpusColumns, *, key: str, form: Form, rejects: Rejects
) -> dict[str, Document]:
    """Documents by their original id; `key` is where params.yaml names the source.

    Raises UserError for a missing file or column, an empty corpus or too many defect rows.
    """
    named = {"doc_id", "content"} | columns.model_fields_set
    required = {getattr(columns, ours): f"{key}.corpus_columns.{ours}" for ours in sorted(named)}
    optional = {columns.title, columns.topic}
    documents: dict[str, Document] = {}
    files = table_files(location, f"{key}.corpus")
    gaps = Gaps(columns.content) if len(files) > 1 else None  # a small file may be all products with a title alone
    for file in files:
        source = f"{name}/corpus/{file.name}"
        rows = read_rows(
            file.path, required=required, optional=optional, source=source, rejects=rejects, gaps=gaps, form=form
        )
        for row in rows:
            try:
                original = one_word(as_id(row.values.get(columns.doc_id)))
                title, topic = (
                    text_field(row.values, theirs, optional=True) for theirs in (columns.title, columns.topic)
                )
                content = text_field(row.values, columns.content, optional=bool(title))  # a product may have that alone
                if not title and not content:
                    raise Defect("empty_text")
                if original in documents:
                    raise Defect("duplicate_id")
            except Defect as defect:
                rejects.add_defect(source, row.line, defect, row.raw())
                continue
            documents[original] = Document(f"{name}/{original}", name, title, topic, content)
    rejects.check(f"{name}/corpus", location, has_settings=True)
    if gaps:
        gaps.check(required)
    if not documents:
        raise UserError(f"params.yaml: {key}.corpus: {location!r} holds no document; name another place")
    return documents
