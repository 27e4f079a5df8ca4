"""A folder in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv, each plain or gzip.

Only the corpus must be there: without qrels nothing is judged, and queries without judgements are unlabelled ones.
answers.jsonl, `{"_id": query id, "answers": [text, ...]}` a line, is ours: strings that answer a query.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from slimtower.common.errors import UserError
from steps.ingest.locations import local_folder
from steps.ingest.qrels import QRELS_SPLITS, other_qrels, read_judgements
from steps.ingest.rejects import Rejects
from steps.ingest.relevance import read_relevance
from steps.ingest.rows import Defect, json_object, plain_or_gzip, read_lines
from steps.ingest.source import (
    ANSWERED_UNJUDGED,
    Answers,
    JudgedSource,
    Location,
    Name,
    ReadContext,
    ScoredSource,
    SourceData,
)
from steps.ingest.splits import JudgedRows
from steps.ingest.table_rows import PATTERNS as TABLES
from steps.ingest.times import Window
from steps.ingest.values import Ids, id_field, text_field

_IDS = ("_id", "id", "docid", "doc_id", "docno")
_TEXTS = ("text", "contents", "content", "body", "passage")
PATTERNS = (
    *(f"{name}.jsonl{ending}" for name in ("corpus", "queries", "answers") for ending in ("", ".gz")),
    "qrels/*",  # one that is no .tsv is refused
)


class BeirSource(JudgedSource, ScoredSource):
    """A folder in BEIR's layout, plain or gzip, on disk or s3://."""

    kind: Literal["beir"]
    """A folder in BEIR's layout. `answers.jsonl` in it, a line `{_id: query id, answers: [text]}`, has answer strings;
    a fourth column of its qrels is a second label, satisfaction.
    """
    path: Name
    """Folder with corpus.jsonl or corpus.jsonl.gz, or s3://bucket/prefix."""
    qrels_columns: list[Literal["query", "document", "grade", "label", "-"]] = Field(default=[])
    """What the columns of qrels without a header are, "-" for one that is not read: ["-", query, document, grade]; [] =
    query, document, grade and label, or what their ids leave no doubt of.
    """

    def locations(self, key: str, window: Window) -> Iterator[Location]:
        yield Location(self.path, f"{key}.path", patterns=PATTERNS, is_folder=True)
        if self.relevance:
            yield Location(self.relevance, f"{key}.relevance", "relevance/", patterns=TABLES)

    def read(self, context: ReadContext) -> SourceData:
        """Read the folder and the scores; without test qrels the dev queries are test.

        Raises UserError without a corpus, for an empty one, for qrels without queries or of which no row is usable,
        and for too many defect rows.
        """
        with local_folder(self.path, f"{context.key}.path", PATTERNS) as folder:
            data = self._read_folder(folder, f"{context.key}.path", context)
        if self.relevance:
            start = len(self.name) + 1  # of the source's own id in ours
            data.relevance = read_relevance(
                self,
                context,
                facts=data.facts,
                by_id={query.query_id[start:]: query.query_id for query in data.queries},
                documents={document.doc_id[start:]: document.doc_id for document in data.documents},
            )
        return data

    def _read_folder(self, folder: Path, key: str, context: ReadContext) -> SourceData:
        corpus_path, queries_path, answers_path = (
            plain_or_gzip(folder, f"{name}.jsonl") for name in ("corpus", "queries", "answers")
        )
        if corpus_path is None:
            raise UserError(
                f"{folder / 'corpus.jsonl'}: not found, nor corpus.jsonl.gz; {key} in params.yaml must name a folder"
                " that holds the documents, one JSON object a line with _id, title and text"
            )
        qrels = _qrels_files(folder / "qrels")
        if queries_path is None and qrels:
            raise UserError(
                f"{folder / 'queries.jsonl'}: not found, nor queries.jsonl.gz, but {qrels[0][1]} judges queries; {key}"
                " in params.yaml needs both or neither"
            )

        data, rows, rejects = SourceData(self.name), JudgedRows(self.name), context.rejects
        _read_documents(corpus_path, rows, rejects)
        if not rows.documents:
            raise UserError(f"{corpus_path}: the corpus is empty; fetch it again or name another folder in {key}")
        if queries_path is not None:
            _read_queries(queries_path, rows, rejects)
        query_ids, doc_ids = Ids(rows.queries), Ids(rows.documents)
        for split, path in qrels:
            read_judgements(path, split, query_ids, doc_ids, rows, rejects, columns=self.qrels_columns, key=key)
            if split == "test" and "test" not in rows.splits().values():
                raise UserError(
                    f"{path}: no usable judgement; {key} needs a relevant document a query, or no such file where"
                    " nothing is to be judged"
                )
        if qrels and qrels[0][1].name.startswith("dev"):
            data.facts["test_judgements"] = qrels[0][1].name
        other_rows, named_by_others = other_qrels(folder / "qrels", query_ids)
        if other_rows:
            data.facts["other_qrels_rows"] = other_rows
        held_out: dict[str, str] = {}
        if answers_path:
            answers, named = _read_answers(answers_path, self.name, query_ids, rejects)
            data.answers = [Answers(f"{self.name}/{original}", texts) for original, texts in answers.items()]
            held_out = dict.fromkeys(named, ANSWERED_UNJUDGED)
        held_out |= dict.fromkeys(named_by_others, "only_in_other_qrels")  # somebody's evaluation: not for training
        rows.settle(data, held_out, seed=context.seed, relevant_from=self.relevant_from)
        return data


def _qrels_files(folder: Path) -> list[tuple[str, Path]]:
    """Split and path of the qrels that are there, in the order of QRELS_SPLITS; without test, those of dev are test."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is no folder; its judgements belong into {folder / 'test.tsv'}")
    files = [(split, path) for split in QRELS_SPLITS if (path := plain_or_gzip(folder, f"{split}.tsv"))]
    if files and files[0][0] == "dev":
        files[0] = ("test", files[0][1])
    return files


def _read_documents(path: Path, rows: JudgedRows, rejects: Rejects) -> None:
    source = f"{rows.name}/{path.name}"
    for _, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
            row = json_object(raw)
            doc_id = id_field(row, *_IDS)
            title = text_field(row, "title", optional=True)
            content = text_field(row, *_TEXTS, optional=bool(title))  # a product may have a title alone
            metadata = row.get("metadata")
            topic = text_field(metadata, "topic", optional=True) if isinstance(metadata, dict) else ""
            rows.add_document(doc_id, title, content, topic)


def _read_queries(path: Path, rows: JudgedRows, rejects: Rejects) -> None:
    source = f"{rows.name}/{path.name}"
    for line, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
            row = json_object(raw)
            rows.add_query(id_field(row, *_IDS, "query_id", "qid"), text_field(row, *_TEXTS, "query"), source, line)


def _read_answers(
    path: Path, name: str, queries: Ids, rejects: Rejects
) -> tuple[dict[str, list[str]], dict[str, None]]:
    """Answer strings by query, and the ids of all queries that are named, by broken rows too."""
    source = f"{name}/{path.name}"
    named: dict[str, None] = {}
    answers: dict[str, list[str]] = {}
    for _, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
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
            if original in answers:
                raise Defect("duplicate_id")
            answers[original] = texts
    return answers, named
