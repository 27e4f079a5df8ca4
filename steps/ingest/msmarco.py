"""A folder in MS MARCO's layout: a collection, queries and TREC qrels as TSV without header, each plain or gzip.

collection.tsv (passage id, passage) or msmarco-docs.tsv (document id, url, title, body); queries.{train,dev,eval,test}
.tsv or one queries.tsv (query id, text); qrels.{train,dev,test}.tsv (query id, 0, document id, grade). The official
names of the small dev set (queries.dev.small.tsv) and of the document task (msmarco-doctrain-queries.tsv) serve too.
Training triplets may come with it: qidpidtriples, a TSV of query, positive and negative id.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.core.texts import fold
from steps.ingest.coded_columns import coded
from steps.ingest.qrels import Judgements
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, decode, grade_of, one_word, plain_or_gzip, read_lines
from steps.ingest.source_data import UNLABELLED, Document, Query, SourceData
from steps.ingest.splits import add_judgement, settle_splits

PATTERNS = ("collection.tsv*", "msmarco-doc*.tsv*", "queries*.tsv*", "qrels.*.tsv*")
_QUERY_FILES = ("test", "dev", "eval", "train", "")  # "": queries.tsv, whose queries may belong to any split
_UNJUDGED = "unjudged_in_evaluation_file"
GIVEN_TRIPLETS: Final = "given_triplets"
_ROWS_AT_ONCE = 2**20  # triplets in memory before a sample is drawn from them


class _Texts(NamedTuple):
    queries: dict[str, Query]
    files: dict[str, str]  # original query id to the split of the file that holds it


def read_msmarco(name: str, folder: Path, *, key: str, seed: int, rejects: Rejects) -> SourceData:
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
    documents = _read_collection(name, folder, key, rejects)
    data.documents = list(documents.values())
    texts = _read_queries(name, folder, key, rejects)

    judgements = Judgements()
    for at, path in qrels.items():
        _read_qrels(name, path, "test" if at == evaluated else at, texts, documents, judgements, rejects)
        rejects.check(f"{name}/{path.name}", path)
    if "test" not in judgements.splits().values():
        raise UserError(f"{qrels[evaluated]}: no usable judgement; {key} needs a relevant document a query")
    data.facts["test_judgements"] = qrels[evaluated].name
    held_out = {query_id: _UNJUDGED for query_id, split in texts.files.items() if split in ("test", "dev", "eval")}
    settle_splits(data, texts.queries, judgements, held_out, seed=seed)
    return data


def _read_collection(name: str, folder: Path, key: str, rejects: Rejects) -> dict[str, Document]:
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
    rejects.check(source, path)
    if not documents:
        raise UserError(f"{path}: the collection is empty; fetch it again or name another folder in {key}")
    return documents


def _read_queries(name: str, folder: Path, key: str, rejects: Rejects) -> _Texts:
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
        rejects.check(source, path)
    return texts


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


def _names(kind: str, split: str) -> tuple[str, ...]:
    if not split:
        return (f"{kind}.tsv",)
    return f"{kind}.{split}.tsv", f"{kind}.{split}.small.tsv", f"msmarco-doc{split}-{kind}.tsv"


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((path for name in names if (path := plain_or_gzip(folder, name))), None)


def _columns(raw: bytes, count: int) -> list[str]:
    columns = [column.strip() for column in decode(raw).split("\t")]
    if len(columns) != count:
        raise Defect("missing_field" if len(columns) < count else "too_many_columns")
    one_word(columns[0])
    return columns


def read_given_triplets(path: Path, data: SourceData, *, key: str, seed: int, limit: int, rejects: Rejects) -> pa.Table:
    """The table `given_triplets` of the train queries of `data`, sorted, each triplet once; `key` names the file.

    At most `limit` of them, drawn by seed, whatever their order in the file; 0 = all, 12 bytes each until they are
    sorted. Those of queries that are not train, dev queries drawn from train among them, are left out and counted in
    the facts of `data`.
    Raises UserError for a missing file, too many defect rows, or when no row is a triplet.
    """
    if not path.is_file():
        raise UserError(
            f"params.yaml: {key}: no file {path}; name one such as qidpidtriples.train.small.tsv, in the source's"
            ' folder or by its path, or "" for none'
        )
    source = f"{data.name}/{path.name}"
    splits = {query.query_id: query.split for query in data.queries}
    query_ids = sorted(query_id for query_id, split in splits.items() if split == "train")
    doc_ids = sorted(document.doc_id for document in data.documents)
    queries = {query_id: number for number, query_id in enumerate(query_ids)}
    documents = {doc_id: number for number, doc_id in enumerate(doc_ids)}
    not_train: Counter[str] = Counter()
    triplets, total = array("i"), 0
    for line, raw in rejects.watched(read_lines(path), source, path):
        rejects.count_row(source)
        total += 1
        try:
            query_id, positive, negative = _parse(raw, data.name, documents)
            if query_id not in splits:
                raise Defect("unknown_query")
        except Defect as defect:
            rejects.add(source, line, defect.reason, raw)
            continue
        if query_id not in queries:
            not_train[splits[query_id]] += 1
            continue
        triplets.extend((queries[query_id], positive, negative))
        if limit and len(triplets) >= 3 * max(2 * limit, _ROWS_AT_ONCE):
            triplets = array("i", _sample(triplets, limit, seed).tobytes())
    rejects.check(source, path)
    if not triplets:
        raise UserError(
            f"params.yaml: {key}: none of the {total} rows of {path} is a triplet of a train query and two documents"
            f' ({rejects.counts(source) or "their queries do not train"}); name another file, or "" for none'
        )
    data.facts["given_triplets_rows"] = total
    if not_train:
        data.facts["given_triplets_not_train"] = dict(not_train)
    return _table(_sample(triplets, limit, seed), query_ids, doc_ids)


def _parse(raw: bytes, name: str, documents: Mapping[str, int]) -> tuple[str, int, int]:
    """Our id of the query, and the numbers of the positive and the negative document."""
    columns = decode(raw).split("\t")
    if len(columns) != 3:
        raise Defect("missing_field" if len(columns) < 3 else "too_many_columns")
    positive, negative = documents.get(f"{name}/{columns[1].strip()}"), documents.get(f"{name}/{columns[2].strip()}")
    if positive is None or negative is None:
        raise Defect("unknown_document")
    if positive == negative:
        raise Defect("same_document")
    return f"{name}/{columns[0].strip()}", positive, negative


def _sample(numbers: array, limit: int, seed: int) -> np.ndarray:
    """The distinct triplets `(n, 3)` of flat numbers, sorted, int32; of more than `limit` those of the least keys."""
    triplets = np.array(numbers, dtype=np.int32).reshape(-1, 3)
    triplets = triplets[np.lexsort(triplets.T[::-1])]
    triplets = triplets[np.append(True, (triplets[1:] != triplets[:-1]).any(axis=1))]
    if not limit or len(triplets) <= limit:
        return triplets
    return triplets[np.sort(np.argsort(_keys(triplets, seed), kind="stable")[:limit])]


def _keys(triplets: np.ndarray, seed: int) -> np.ndarray:
    """A pseudorandom uint64 of each triplet and the seed, mixed as in SplitMix64 (Steele, Lea and Flood 2014)."""
    keys = np.full(len(triplets), seed % 2**64, dtype=np.uint64)
    for column in triplets.T:
        keys = (keys ^ column.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys ^= keys >> np.uint64(31)
    return keys


def _table(triplets: np.ndarray, query_ids: list[str], doc_ids: list[str]) -> pa.Table:
    query, positive, negative = triplets.T
    ids = pa.array(doc_ids, pa.string())
    return pa.table(
        {
            "query_id": coded(query, pa.array(query_ids, pa.string())),
            "positive_id": coded(positive, ids),
            "negative_id": coded(negative, ids),
        }
    )
