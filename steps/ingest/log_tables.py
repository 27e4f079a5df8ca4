"""The tables of a source with columns of the user's own names: all files of one of its fields."""

from collections.abc import Collection, Iterator, Mapping

from steps.core.progress import progress
from steps.ingest.locations import table_files
from steps.ingest.source import ReadContext, ScoredSource
from steps.ingest.table_rows import Gaps, Row, read_rows
from steps.ingest.times import ALWAYS, Window


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
