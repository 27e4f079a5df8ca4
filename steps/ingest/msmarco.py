"""A folder in MS MARCO's layout: a collection, queries and TREC qrels as TSV without header, each plain or gzip.

collection.tsv (passage id, passage) or msmarco-docs.tsv (document id, url, title, body); queries.{train,dev,eval,test}
.tsv or one queries.tsv (query id, text); qrels.{train,dev,test}.tsv (query id, 0, document id, grade). The official
names of the small dev set (queries.dev.small.tsv) and of the document task (msmarco-doctrain-queries.tsv) serve too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError
from steps.core.texts import fold
from steps.ingest.qrels import Judgements
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, decode, grade_of, one_word, plain_or_gzip, read_lines
from steps.ingest.source_data import UNLABELLED, Document, Query, SourceData
from steps.ingest.splits import add_judgement, settle_splits

PATTERNS = ("collection.tsv*", "msmarco-doc*.tsv*", "queries*.tsv*", "qrels.*.tsv*")
_QUERY_FILES = ("test", "dev", "eval", "train", "")  # "": queries.tsv, whose queries may belong to any split
_UNJUDGED = "unjudged_in_evaluation_file"


class _Texts(NamedTuple):
    queries: dict[str, Query]
    files: dict[str, str]  # original query id to the split of the file that holds it


def read_msmarco(
    name: str,
    folder: Path,
    *,
    key: str,
    seed: int,
    max_reject_ratio: float,
    rejects: Rejects,
) -> SourceData:
    """Read one MS MARCO folder; `key` is where params.yaml names it.

    MS MARCO publishes no test judgements: without qrels.test the dev queries are test, and a seeded share
    DEV_FRACTION of the train queries becomes dev. Train queries that no judgement names are unlabelled; those of the
    other query files without judgement are somebody's evaluation and are left out.
    Raises UserError for a missing file, an empty collection, unusable judgements or too many defect rows.
    """
    if not folder.is_dir():
        raise UserError(f"params.yaml: {key}: no folder {folder}; name an MS MARCO folder (DATA=... with make run)")
    qrels = {split: path for split in ("test", "dev", "train") if (path := _first(folder, _names("qrels", split)))}
    evaluated = "test" if "test" in qrels else "dev"
    if evaluated not in qrels:
        raise UserError(f"{folder}: neither qrels.test.tsv nor qrels.dev.tsv; {key} needs judgements to evaluate on")

    data = SourceData(name)
    documents = _read_collection(name, folder, key, max_reject_ratio, rejects)
    data.documents = list(documents.values())
    texts = _read_queries(name, folder, key, max_reject_ratio, rejects)

    judgements = Judgements()
    for at, path in qrels.items():
        _read_qrels(name, path, "test" if at == evaluated else at, texts, documents, judgements, rejects)
        rejects.check(f"{name}/{path.name}", path, max_reject_ratio)
    if "test" not in judgements.splits().values():
        raise UserError(f"{qrels[evaluated]}: no usable judgement; {key} needs a relevant document a query")
    data.facts["test_judgements"] = qrels[evaluated].name
    held_out = {query_id: _UNJUDGED for query_id, split in texts.files.items() if split in ("test", "dev", "eval")}
    settle_splits(data, texts.queries, judgements, held_out, seed=seed)
    return data


def _names(kind: str, split: str) -> tuple[str, ...]:
    if not split:
        return (f"{kind}.tsv",)
    return f"{kind}.{split}.tsv", f"{kind}.{split}.small.tsv", f"msmarco-doc{split}-{kind}.tsv"


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((path for name in names if (path := plain_or_gzip(folder, name))), None)


def _read_collection(
    name: str, folder: Path, key: str, max_reject_ratio: float, rejects: Rejects
) -> dict[str, Document]:
    path = _first(folder, ("collection.tsv", "msmarco-docs.tsv"))
    if path is None:
        raise UserError(f"{folder}: neither collection.tsv nor msmarco-docs.tsv, nor .gz; {key} needs one of them")
    passages, source = path.name.startswith("collection"), f"{name}/{path.name}"
    documents: dict[str, Document] = {}
    for line, raw in read_lines(path):
        rejects.count_row(source)
        try:
            columns = _columns(raw, 2 if passages else 4)
            title, content = "" if passages else columns[2], columns[-1]
            if not title and not content:
                raise Defect("empty_text")
            if columns[0] in documents:
                raise Defect("duplicate_id")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        documents[columns[0]] = Document(f"{name}/{columns[0]}", name, title, "", content)
    rejects.check(source, path, max_reject_ratio)
    if not documents:
        raise UserError(f"{path}: the collection is empty; fetch it again or name another folder in {key}")
    return documents


def _read_queries(name: str, folder: Path, key: str, max_reject_ratio: float, rejects: Rejects) -> _Texts:
    texts = _Texts({}, {})
    files = [(split, path) for split in _QUERY_FILES if (path := _first(folder, _names("queries", split)))]
    if not files:
        raise UserError(f"{folder}: neither queries.train.tsv, queries.dev.tsv nor queries.tsv; {key} needs queries")
    for split, path in files:
        source = f"{name}/{path.name}"
        for line, raw in read_lines(path):
            rejects.count_row(source)
            try:
                query_id, text = _columns(raw, 2)
                if not fold(text):
                    raise Defect("empty_text")
                previous = texts.queries.get(query_id)
                if previous and (previous.source == source or previous.text != text):
                    raise Defect("duplicate_id")
            except Defect as defect:
                rejects.add(source, line, defect.reason, raw)
                continue
            if previous:
                rejects.add(source, line, "query_in_two_splits", raw, defect=False)
            else:
                texts.queries[query_id] = Query(f"{name}/{query_id}", name, text, UNLABELLED, source, line)
                texts.files[query_id] = split
        rejects.check(source, path, max_reject_ratio)
    return texts


def _columns(raw: bytes, count: int) -> list[str]:
    columns = [column.strip() for column in decode(raw).split("\t")]
    if len(columns) != count:
        raise Defect("missing_field" if len(columns) < count else "too_many_columns")
    one_word(columns[0])
    return columns


def _read_qrels(
    name: str,
    path: Path,
    split: str,
    texts: _Texts,
    documents: Mapping[str, Document],
    judgements: Judgements,
    rejects: Rejects,
) -> None:
    source = f"{name}/{path.name}"
    for line, raw in read_lines(path):
        rejects.count_row(source)
        # A query named by a broken row is still this split's, and one of an evaluation file never trains.
        query_id = b"".join(raw.split(maxsplit=1)[:1]).decode("utf-8", "replace")
        if query_id in texts.queries:
            trains = split == "train" and texts.files[query_id] in ("test", "dev", "eval")
            if trains or judgements.named.setdefault(query_id, split) != split:
                rejects.add(source, line, "query_in_two_splits", raw, defect=False)
                continue
        try:
            columns = decode(raw).split()
            if len(columns) != 4:
                raise Defect("missing_field" if len(columns) < 4 else "too_many_columns")
            add_judgement(judgements, query_id, columns[2], grade_of(columns[3]), texts.queries, documents)
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
