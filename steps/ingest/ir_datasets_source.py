"""A data set of the package ir_datasets by its id, e.g. beir/scifact, msmarco-passage or wikir/en1k.

Queries and judgements are those of its parts `<id>/train`, `<id>/dev` and `<id>/test` (also training, validation,
valid, val); a data set that has neither test nor dev part is itself the test.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from slimtower.common.errors import TransientError, UserError
from steps.core.progress import progress
from steps.core.texts import fold
from steps.ingest.qrels import Judgements
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect
from steps.ingest.source_data import UNLABELLED, Document, Query, SourceData
from steps.ingest.splits import add_judgement, settle_splits
from steps.ingest.values import id_field, text_field

_PARTS = {"test": ("test",), "dev": ("dev", "validation", "valid", "val"), "train": ("train", "training")}
_UNJUDGED = "unjudged_in_evaluation_part"


def read_ir_dataset(name: str, dataset_id: str, *, key: str, seed: int, rejects: Rejects) -> SourceData:
    """Read one data set, which the package downloads into IR_DATASETS_HOME; `key` is where params.yaml names it.

    Without a judged test part the dev part is test, and a seeded share DEV_FRACTION of the train queries becomes
    dev. Train queries that no judgement names are unlabelled; such queries of the other parts are left out.
    Raises UserError when the package or the id is missing, when the data set has no documents or no judgements to
    evaluate on, and for too many defect rows; TransientError when a download fails.
    """
    loaded = _load(dataset_id, key)
    parts = _parts(dataset_id, loaded)
    if "test" not in parts:
        raise UserError(
            f"params.yaml: {key}: {dataset_id!r} has no documents, or no queries with judgements to evaluate on;"
            " name the id above its parts train, dev and test"
        )
    data = SourceData(name)
    with _downloads(dataset_id, key):
        documents = _read_documents(name, loaded, rejects)
        rejects.check(f"{name}/docs", f"{dataset_id}: docs")
        data.documents = list(documents.values())
        texts: dict[str, Query] = {}
        judgements = Judgements()
        held_out: dict[str, str] = {}
        for split, (part, _) in parts.items():
            _read_queries(name, split, part, texts, rejects)
            rejects.check(f"{name}/{split}/queries", f"{dataset_id}: {split} queries")
            if split != "train":
                held_out = dict.fromkeys(texts, _UNJUDGED)
        for split, (part, part_id) in parts.items():
            _read_qrels(name, split, part, texts, documents, judgements, rejects)
            rejects.check(f"{name}/{split}/qrels", f"{part_id}: qrels")
    if "test" not in judgements.splits().values():
        raise UserError(f"params.yaml: {key}: {parts['test'][1]!r} has no usable judgement; name another data set")
    data.facts["parts"] = {split: part_id for split, (_, part_id) in parts.items()}
    settle_splits(data, texts, judgements, held_out, seed=seed)
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
        for spelling in spellings:
            part_id = f"{dataset_id}/{spelling}"
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


def _read_documents(name: str, loaded: Any, rejects: Rejects) -> dict[str, Document]:
    source = f"{name}/docs"
    documents: dict[str, Document] = {}
    for row_number, row in enumerate(progress(loaded.docs_iter(), None, f"{name}: documents"), start=1):
        rejects.count_row(source)
        try:
            original = id_field(_fields(row, "doc_id"), "doc_id")
            title, content = _document_text(row)
            if not title and not content:
                raise Defect("empty_text")
            if original in documents:
                raise Defect("duplicate_id")
        except Defect as defect:
            rejects.add(source, row_number, defect.reason, str(row))
            continue
        documents[original] = Document(f"{name}/{original}", name, title, "", content)
    return documents


def _document_text(row: Any) -> tuple[str, str]:
    """Title and content: the fields title and text or body, else what the package takes as the row's text."""
    fields = _fields(row, "title", "text", "body")
    title = text_field(fields, "title", optional=True) if isinstance(fields["title"], str) else ""
    for field in ("text", "body"):
        if isinstance(fields[field], str):
            return title, text_field(fields, field)
    content = text_field({"text": row.default_text() if hasattr(row, "default_text") else None}, "text")
    return title, content.removeprefix(title).strip()


def _read_queries(name: str, split: str, part: Any, texts: dict[str, Query], rejects: Rejects) -> None:
    """Add a part's queries; one that an earlier part had keeps its place there."""
    source = f"{name}/{split}/queries"
    for row_number, row in enumerate(part.queries_iter(), start=1):
        rejects.count_row(source)
        try:
            original = id_field(_fields(row, "query_id"), "query_id")
            fields = _fields(row, "text")
            if not isinstance(fields["text"], str) and hasattr(row, "default_text"):
                fields["text"] = row.default_text()
            text = text_field(fields, "text")
            if not fold(text):
                raise Defect("empty_text")
            previous = texts.get(original)
            if previous and (previous.source == source or previous.text != text):
                raise Defect("duplicate_id")
        except Defect as defect:
            rejects.add(source, row_number, defect.reason, str(row))
            continue
        texts.setdefault(original, Query(f"{name}/{original}", name, text, UNLABELLED, source, row_number))


def _read_qrels(
    name: str,
    split: str,
    part: Any,
    texts: Mapping[str, Query],
    documents: Mapping[str, Document],
    judgements: Judgements,
    rejects: Rejects,
) -> None:
    source = f"{name}/{split}/qrels"
    for row_number, row in enumerate(part.qrels_iter(), start=1):
        rejects.count_row(source)
        fields = _fields(row, "query_id", "doc_id", "relevance")
        query_id, grade = str(fields["query_id"]), fields["relevance"]
        if query_id in texts and judgements.named.setdefault(query_id, split) != split:
            rejects.add(source, row_number, "query_in_two_splits", str(row), defect=False)
            continue
        try:
            if not isinstance(grade, int):
                raise Defect("missing_field" if grade is None else "bad_grade")
            add_judgement(judgements, query_id, str(fields["doc_id"]), grade, texts, documents)
        except Defect as defect:
            rejects.add(source, row_number, defect.reason, str(row))


def _fields(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name, None) for name in names}
