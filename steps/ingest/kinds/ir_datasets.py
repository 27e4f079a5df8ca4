"""A data set of the package ir_datasets by its id, e.g. beir/scifact, msmarco-passage or wikir/en1k."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from slimtower.common.errors import TransientError, UserError
from steps.core.progress import progress
from steps.ingest.rows import Defect
from steps.ingest.source import JudgedSource, Name, ReadContext, SourceData
from steps.ingest.splits import JudgedRows
from steps.ingest.values import id_field, text_field

_PARTS = {"test": ("test",), "dev": ("dev", "validation", "valid", "val"), "train": ("train", "training")}
_UNJUDGED = "unjudged_in_evaluation_part"


class IrDatasetsSource(JudgedSource):
    """A data set of the package ir_datasets, which downloads it."""

    kind: Literal["ir_datasets"]
    id: Name
    """Its id, such as beir/scifact."""

    def read(self, context: ReadContext) -> SourceData:
        """Read the data set, which the package downloads into IR_DATASETS_HOME.

        Queries and judgements are those of its parts `<id>/train`, `<id>/dev` and `<id>/test`. A data set that has
        neither test nor dev part is itself the test; without a judged test part the dev part is test. Train queries
        that no judgement names are unlabelled; such queries of the other parts are left out.
        Raises UserError when the package or the id is missing, when the data set has no documents or no judgements to
        evaluate on, and for too many defect rows; TransientError when a download fails.
        """
        key, rejects = f"{context.key}.id", context.rejects
        loaded = _load(self.id, key)
        parts = _parts(self.id, loaded)
        if "test" not in parts:
            raise UserError(
                f"params.yaml: {key}: {self.id!r} has no documents, or no queries with judgements to evaluate on;"
                " name the id above its parts train, dev and test"
            )
        rows = JudgedRows(self.name)
        held_out: dict[str, str] = {}
        with _downloads(self.id, key):
            source = f"{self.name}/docs"
            documents = progress(loaded.docs_iter(), None, f"{self.name}: documents")
            for _, row, guard in rejects.guarded(enumerate(documents, start=1), source, f"{self.id}: docs"):
                with guard:
                    rows.add_document(id_field(_fields(row, "doc_id"), "doc_id"), *_document_text(row))
            for split, (part, _) in parts.items():
                source = f"{self.name}/{split}/queries"
                queries = enumerate(part.queries_iter(), start=1)
                for number, row, guard in rejects.guarded(queries, source, f"{self.id}: {split} queries"):
                    with guard:
                        query_id = id_field(_fields(row, "query_id"), "query_id")
                        rows.add_query(query_id, _query_text(row), source, number)
                if split != "train":
                    held_out = dict.fromkeys(rows.queries, _UNJUDGED)
            for split, (part, part_id) in parts.items():
                source = f"{self.name}/{split}/qrels"
                qrels = enumerate(part.qrels_iter(), start=1)
                for _, row, guard in rejects.guarded(qrels, source, f"{part_id}: qrels"):
                    with guard:
                        _judge(row, split, rows)
        if "test" not in rows.splits().values():
            raise UserError(f"params.yaml: {key}: {parts['test'][1]!r} has no usable judgement; name another data set")
        data = SourceData(self.name, facts={"parts": {split: part_id for split, (_, part_id) in parts.items()}})
        rows.settle(data, held_out, seed=context.seed, relevant_from=self.relevant_from)
        return data


def _load(dataset_id: str, key: str) -> Any:
    try:
        import ir_datasets
    except ModuleNotFoundError:
        raise UserError(f"params.yaml: {key}: needs ir_datasets; run `pip install ir_datasets`") from None
    try:
        return ir_datasets.load(dataset_id)
    except KeyError:
        raise UserError(
            f"params.yaml: {key}: ir_datasets has no {dataset_id!r}; `ir_datasets list` prints the ids it has"
        ) from None


def _parts(dataset_id: str, loaded: Any) -> dict[str, tuple[Any, str]]:
    """Part and its id by split, in the order of the splits; empty without documents."""
    import ir_datasets

    if not loaded.has_docs():
        return {}
    parts: dict[str, tuple[Any, str]] = {}
    for split, spellings in _PARTS.items():
        for part_id in (f"{dataset_id}/{spelling}" for spelling in spellings):
            try:
                part = ir_datasets.load(part_id)
            except KeyError:
                continue
            if part.has_queries() and part.has_qrels():
                parts.setdefault(split, (part, part_id))
    if "test" not in parts and "dev" in parts:
        return {"test": parts.pop("dev"), **parts}
    if "test" not in parts and loaded.has_queries() and loaded.has_qrels():
        return {"test": (loaded, dataset_id), **parts}
    return parts


@contextmanager
def _downloads(dataset_id: str, key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:  # a data set that its licence keeps from being downloaded
        raise UserError(f"params.yaml: {key}: {dataset_id}: {error}; put the file there by hand") from None
    except (OSError, RuntimeError) as error:
        raise TransientError(f"params.yaml: {key}: {dataset_id}: {error}; check the network and run again") from None


def _document_text(row: Any) -> tuple[str, str]:
    """Title and content: the fields title and text or body, else what the package takes as the row's text."""
    fields = _fields(row, "title", "text", "body")
    title = text_field(fields, "title", optional=True) if isinstance(fields["title"], str) else ""
    for field in ("text", "body"):
        if isinstance(fields[field], str):
            return title, text_field(fields, field)
    content = text_field({"text": row.default_text() if hasattr(row, "default_text") else None}, "text")
    return title, content.removeprefix(title).strip()


def _query_text(row: Any) -> str:
    fields = _fields(row, "text")
    if not isinstance(fields["text"], str) and hasattr(row, "default_text"):
        fields["text"] = row.default_text()
    return text_field(fields, "text")


def _judge(row: Any, split: str, rows: JudgedRows) -> None:
    fields = _fields(row, "query_id", "doc_id", "relevance")
    query_id, grade = str(fields["query_id"]), fields["relevance"]
    if query_id in rows.queries:
        rows.name_query(query_id, split)
    if not isinstance(grade, int):
        raise Defect("missing_field" if grade is None else "bad_grade")
    rows.add_judgement(query_id, str(fields["doc_id"]), grade)


def _fields(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name, None) for name in names}
