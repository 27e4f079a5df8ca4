"""The tables of a source with columns of the user's own names, and the documents that a log's corpus has."""

from collections.abc import Collection, Iterator, Mapping

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.ingest.locations import table_files
from steps.ingest.rows import one_word
from steps.ingest.source import LogSource, ReadContext, ScoredSource
from steps.ingest.source_data import Document
from steps.ingest.splits import JudgedRows
from steps.ingest.table_rows import Gaps, Row, read_rows
from steps.ingest.times import ALWAYS, Window
from steps.ingest.values import as_id, text_field


class Tables:
    """The files of a field of params.yaml, such as `corpus`; their rows, and whether enough of them are of use."""

    def __init__(self, source: ScoredSource, field: str, context: ReadContext, window: Window = ALWAYS) -> None:
        self.place: str = getattr(source, field)
        self.form, self.rejects = source.form, context.rejects
        self.name, self.subject = f"{source.name}/{field}", f"params.yaml: {context.key}.{field}, {self.place}"
        files = table_files(self.place, f"{context.key}.{field}", window)
        self.files = {f"{self.name}/{file.name}": file.path for file in files}

    def rows(
        self, required: Mapping[str, str], optional: Collection[str] = (), gap: str = ""
    ) -> Iterator[tuple[str, Row]]:
        """Rows as of `read_rows`, each with its file's name; of several small files some may lack the column `gap`."""
        gaps = Gaps(gap) if gap and len(self.files) > 1 else None
        for name, path in self.files.items():
            rows = read_rows(
                path,
                required=required,
                optional=optional,
                source=name,
                rejects=self.rejects,
                gaps=gaps,
                form=self.form,
            )
            yield from ((name, row) for row in progress(self.rejects.watched(rows, name, path), None, name))
        if gaps:
            gaps.check(required)

    def check(self, *, has_settings: bool = True) -> None:
        """UserError where too many rows are defect; `has_settings`: the source has knobs of how its files spell."""
        self.rejects.check(self.name, self.place, has_settings=has_settings)

    def check_log(self, other_rows: int) -> None:
        """The same, and where most rows, `other_rows` not counted, are about what is not there."""
        self.check()
        self.rejects.check_log(list(self.files), self.subject, other_rows)


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
