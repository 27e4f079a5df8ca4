"""A folder in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv, each plain or gzip.

Only the corpus must be there: without qrels nothing is judged, and queries without judgements are unlabelled ones.
answers.jsonl, `{"_id": query id, "answers": [text, ...]}` a line, is ours: strings that answer a query.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError
from steps.core.texts import fold
from steps.ingest.qrels import QRELS_SPLITS, Judgements, other_qrels, read_judgements
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, json_object, plain_or_gzip, read_lines
from steps.ingest.source_data import ANSWERED_UNJUDGED, UNLABELLED, Answers, Document, Query, SourceData
from steps.ingest.splits import settle_splits
from steps.ingest.values import Ids, id_field, text_field

_IDS = ("_id", "id", "docid", "doc_id", "docno")
_TEXTS = ("text", "contents", "content", "body", "passage")


def read_beir(
    name: str, folder: Path, *, key: str, seed: int, rejects: Rejects, qrels_columns: Sequence[str] = ()
) -> SourceData:
    """Read one BEIR folder; `key` is where params.yaml names it, `qrels_columns` what its qrels without header hold.

    A query judged relevant for nothing belongs to no evaluation; it is unlabelled when neither a qrels file nor
    answers.jsonl names it at all. Without test qrels the dev queries are test. Without dev qrels a seeded share
    DEV_FRACTION of the train queries becomes dev.
    Raises UserError without a corpus, for an empty one, for qrels without queries or of which no row is usable, and for
    too many defect rows.
    """
    if not folder.is_dir():
        raise UserError(f"params.yaml: {key}: no folder {folder}; name a BEIR folder (DATA=... with make run)")
    corpus_path = plain_or_gzip(folder, "corpus.jsonl")
    if corpus_path is None:
        raise UserError(
            f"{folder / 'corpus.jsonl'}: not found, nor corpus.jsonl.gz; {key} in params.yaml must name a folder that"
            " holds the documents, one JSON object a line with _id, title and text"
        )
    qrels = _qrels_files(folder / "qrels")
    queries_path = plain_or_gzip(folder, "queries.jsonl")
    if queries_path is None and qrels:
        raise UserError(
            f"{folder / 'queries.jsonl'}: not found, nor queries.jsonl.gz, but {qrels[0].path} judges queries; {key} in"
            " params.yaml needs both or neither"
        )

    data = SourceData(name)
    documents = _read_documents(name, corpus_path, rejects)
    rejects.check(f"{name}/{corpus_path.name}", corpus_path)
    if not documents:
        raise UserError(f"{corpus_path}: the corpus is empty; fetch it again or name another folder in {key}")
    data.documents = list(documents.values())

    texts: dict[str, Query] = {}
    if queries_path is not None:
        texts = _read_queries(name, queries_path, rejects)
        rejects.check(f"{name}/{queries_path.name}", queries_path)

    judgements = Judgements()
    query_ids, doc_ids = Ids(texts), Ids(documents)
    for split, path in qrels:
        read_judgements(name, path, split, query_ids, doc_ids, judgements, rejects, columns=qrels_columns, key=key)
        rejects.check(f"{name}/qrels/{path.name}", path)
        if split == "test" and "test" not in judgements.splits().values():
            raise UserError(
                f"{path}: no usable judgement; {key} needs a relevant document a query, or no such file where nothing"
                " is to be judged"
            )
    if qrels and qrels[0].path.name.startswith("dev"):
        data.facts["test_judgements"] = qrels[0].path.name
    other_rows, named_by_others = other_qrels(folder / "qrels", query_ids)
    if other_rows:
        data.facts["other_qrels_rows"] = other_rows
    held_out: dict[str, str] = {}
    if answers_path := plain_or_gzip(folder, "answers.jsonl"):
        data.answers, named = _read_answers(name, answers_path, query_ids, rejects)
        rejects.check(f"{name}/{answers_path.name}", answers_path)
        held_out = dict.fromkeys(named, ANSWERED_UNJUDGED)
    held_out |= dict.fromkeys(named_by_others, "only_in_other_qrels")  # somebody's evaluation: not for training either
    settle_splits(data, texts, judgements, held_out, seed=seed)
    return data


class _Qrels(NamedTuple):
    split: str
    path: Path


def _qrels_files(folder: Path) -> list[_Qrels]:
    """The qrels that are there, in the order of QRELS_SPLITS; without those of test, those of dev are test."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is no folder; its judgements belong into {folder / 'test.tsv'}")
    files = [_Qrels(split, path) for split in QRELS_SPLITS if (path := plain_or_gzip(folder, f"{split}.tsv"))]
    if files and files[0].split == "dev":
        files[0] = files[0]._replace(split="test")
    return files


def _read_documents(name: str, path: Path, rejects: Rejects) -> dict[str, Document]:
    source = f"{name}/{path.name}"
    documents: dict[str, Document] = {}
    for line, raw in read_lines(path):
        rejects.count_row(source)
        try:
            row = json_object(raw)
            original = id_field(row, *_IDS)
            title = text_field(row, "title", optional=True)
            content = text_field(row, *_TEXTS, optional=bool(title))  # a product may have a title alone
            metadata = row.get("metadata")
            topic = text_field(metadata, "topic", optional=True) if isinstance(metadata, dict) else ""
            if not title and not content:
                raise Defect("empty_text")
            if original in documents:
                raise Defect("duplicate_id")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        documents[original] = Document(f"{name}/{original}", name, title, topic, content)
    return documents


def _read_answers(name: str, path: Path, queries: Ids, rejects: Rejects) -> tuple[list[Answers], dict[str, None]]:
    """Answer strings by query, and the ids of all queries that are named, by broken rows too.

    Answers without a letter, a digit or a sign could be found in no document.
    """
    source = f"{name}/{path.name}"
    named: dict[str, None] = {}
    answers_by_query: dict[str, list[str]] = {}
    for line, raw in read_lines(path):
        rejects.count_row(source)
        try:
            row = json_object(raw)
            original = queries.find(query_id := id_field(row, *_IDS, "query_id", "qid"))
            named[original or query_id] = None
            listed = row.get("answers")
            if not isinstance(listed, list):
                raise Defect("missing_field" if listed is None else "wrong_type")
            texts = [text_field({"answer": text}, "answer") for text in listed]
            if not texts or not all(texts):
                raise Defect("empty_text")
            if original is None:
                raise Defect("unknown_query")
            if original in answers_by_query:
                raise Defect("duplicate_id")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        answers_by_query[original] = texts
    return [Answers(f"{name}/{original}", texts) for original, texts in answers_by_query.items()], named


def _read_queries(name: str, path: Path, rejects: Rejects) -> dict[str, Query]:
    source = f"{name}/{path.name}"
    queries: dict[str, Query] = {}
    for line, raw in read_lines(path):
        rejects.count_row(source)
        try:
            row = json_object(raw)
            original = id_field(row, *_IDS, "query_id", "qid")
            text = text_field(row, *_TEXTS, "query")
            if not fold(text):
                raise Defect("empty_text")
            if original in queries:
                raise Defect("duplicate_id")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        queries[original] = Query(f"{name}/{original}", name, text, UNLABELLED, source, line)
    return queries
