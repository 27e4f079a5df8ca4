"""A folder in MS MARCO's layout: a collection, queries and TREC qrels as TSV without header, each plain or gzip.

collection.tsv (passage id, passage) or msmarco-docs.tsv (document id, url, title, body); queries.{train,dev,eval,test}
.tsv or one queries.tsv (query id, text); qrels.{train,dev,test}.tsv (query id, 0, document id, grade). The official
names of the small dev set (queries.dev.small.tsv) and of the document task (msmarco-doctrain-queries.tsv) serve too.
Training triplets may come with it: qidpidtriples, a TSV of query, positive and negative id.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from slimtower.common.errors import UserError
from steps.ingest.coded_columns import coded, mixed
from steps.ingest.locations import local_folder, one_file
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, LeftOut, decode, grade_of, one_word, plain_or_gzip, read_lines
from steps.ingest.source import JudgedSource, Location, Name, ReadContext, SourceData
from steps.ingest.splits import JudgedRows
from steps.ingest.times import Window

PATTERNS = ("collection.tsv*", "msmarco-doc*.tsv*", "queries*.tsv*", "qrels.*.tsv*")
_QUERY_FILES = ("test", "dev", "eval", "train", "")  # "": queries.tsv, whose queries may belong to any split
_EVALUATION_FILES = ("test", "dev", "eval")
_UNJUDGED = "unjudged_in_evaluation_file"
_ROWS_AT_ONCE = 2**20  # triplets in memory before a sample is drawn from them


class MsMarcoSource(JudgedSource):
    """A folder of MS MARCO's TSV files, plain or gzip."""

    kind: Literal["ms_marco"]
    path: Name
    """Folder of the TSV files."""
    triplets: str = ""
    """File of query, positive and negative passage ids, such as qidpidtriples.train.full.2.tsv.gz: a name in the folder
    or a path; "" = none.
    """
    max_triplets: int = Field(default=0, ge=0)
    """Most triplets drawn from it by seed; 0 = all (400 million in the full file)."""

    @property
    def triplets_place(self) -> str:
        """Where the file of triplets lies; "" = none."""
        inside = self.triplets and "/" not in self.triplets
        return f"{self.path.rstrip('/')}/{self.triplets}" if inside else self.triplets

    def locations(self, key: str, window: Window) -> Iterator[Location]:
        yield Location(self.path, f"{key}.path", patterns=PATTERNS, is_folder=True)
        if self.triplets:
            lines = "query, positive and negative id"
            yield Location(self.triplets_place, f"{key}.triplets", "triplets/", lines=lines)

    def read(self, context: ReadContext) -> SourceData:
        """Read the folder and the triplets; MS MARCO publishes no test judgements: without them dev queries are test.

        Train queries that no judgement names are unlabelled; such queries of the other files are left out.
        Raises UserError for a missing file, an empty collection, unusable judgements or too many defect rows.
        """
        with local_folder(self.path, f"{context.key}.path", PATTERNS) as folder:
            data = self._read_folder(folder, f"{context.key}.path", context)
        if self.triplets:
            key = f"{context.key}.triplets"
            data.given_triplets = self._read_triplets(one_file(self.triplets_place, key), data, key, context)
        return data

    def _read_folder(self, folder: Path, key: str, context: ReadContext) -> SourceData:
        qrels = {split: path for split in ("test", "dev", "train") if (path := _first(folder, _names("qrels", split)))}
        evaluated = "test" if "test" in qrels else "dev"
        if evaluated not in qrels:
            raise UserError(
                f"{folder}: neither qrels.test.tsv nor qrels.dev.tsv; {key} needs judgements to evaluate on"
            )
        rows = JudgedRows(self.name)
        _read_collection(folder, rows, key, context.rejects)
        file_of = _read_queries(folder, rows, key, context.rejects)
        for at, path in qrels.items():
            _read_qrels(path, "test" if at == evaluated else at, rows, file_of, context.rejects)
        if "test" not in rows.splits().values():
            raise UserError(f"{qrels[evaluated]}: no usable judgement; {key} needs a relevant document a query")
        data = SourceData(self.name, facts={"test_judgements": qrels[evaluated].name})
        held_out = {query_id: _UNJUDGED for query_id, file in file_of.items() if file in _EVALUATION_FILES}
        rows.settle(data, held_out, seed=context.seed, relevant_from=self.relevant_from)
        return data

    def _read_triplets(self, path: Path, data: SourceData, key: str, context: ReadContext) -> pa.Table:
        """The table `given_triplets` of the train queries of `data`, sorted, each triplet once.

        At most `max_triplets`, whatever their order in the file. Those of queries that do not train are counted in the
        facts of `data`. Raises UserError for too many defect rows, or when no row is a triplet.
        """
        source, rejects, limit = f"{self.name}/{path.name}", context.rejects, self.max_triplets
        splits = {query.query_id: query.split for query in data.queries}
        query_ids = sorted(query_id for query_id, split in splits.items() if split == "train")
        doc_ids = sorted(document.doc_id for document in data.documents)
        queries = {query_id: number for number, query_id in enumerate(query_ids)}
        documents = {doc_id: number for number, doc_id in enumerate(doc_ids)}
        not_train: Counter[str] = Counter()
        triplets, total = array("i"), 0
        watched = rejects.watched(read_lines(path), source, path)
        for _, raw, guard in rejects.guarded(watched, source, path):
            total += 1
            with guard:
                query_id, positive, negative = _parse(raw, self.name, documents)
                if query_id not in splits:
                    raise Defect("unknown_query")
                if query_id not in queries:
                    not_train[splits[query_id]] += 1
                    continue
                triplets.extend((queries[query_id], positive, negative))
            if limit and len(triplets) >= 3 * max(2 * limit, _ROWS_AT_ONCE):
                triplets = array("i", _sample(triplets, limit, context.seed).tobytes())
        if not triplets:
            raise UserError(
                f"params.yaml: {key}: none of the {total} rows of {path} is a triplet of a train query and two"
                f" documents ({rejects.counts(source) or 'their queries do not train'}); name another file, or"
                ' "" for none'
            )
        data.facts["given_triplets_rows"] = total
        if not_train:
            data.facts["given_triplets_not_train"] = dict(not_train)
        query, positives, negatives = _sample(triplets, limit, context.seed).T
        ids = pa.array(doc_ids, pa.string())
        columns = {"positive_id": coded(positives, ids), "negative_id": coded(negatives, ids)}
        return pa.table({"query_id": coded(query, pa.array(query_ids, pa.string())), **columns})


def _read_collection(folder: Path, rows: JudgedRows, key: str, rejects: Rejects) -> None:
    path = _first(folder, ("collection.tsv", "msmarco-docs.tsv"))
    if path is None:
        raise UserError(f"{folder}: neither collection.tsv nor msmarco-docs.tsv, nor .gz; {key} needs one of them")
    passages, source = path.name.startswith("collection"), f"{rows.name}/{path.name}"
    for _, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
            columns = _columns(raw, 2 if passages else 4)
            rows.add_document(columns[0], "" if passages else columns[2], columns[-1])
    if not rows.documents:
        raise UserError(f"{path}: the collection is empty; fetch it again or name another folder in {key}")


def _read_queries(folder: Path, rows: JudgedRows, key: str, rejects: Rejects) -> dict[str, str]:
    """Read the queries; returns of each which of _QUERY_FILES holds it."""
    files = [(split, path) for split in _QUERY_FILES if (path := _first(folder, _names("queries", split)))]
    if not files:
        raise UserError(f"{folder}: neither queries.train.tsv, queries.dev.tsv nor queries.tsv; {key} needs queries")
    file_of: dict[str, str] = {}
    for split, path in files:
        source = f"{rows.name}/{path.name}"
        for line, raw, guard in rejects.guarded(read_lines(path), source, path):
            with guard:
                query_id, text = _columns(raw, 2)
                if not rows.add_query(query_id, text, source, line):
                    raise LeftOut("query_in_two_splits")
                file_of[query_id] = split
    return file_of


def _read_qrels(path: Path, split: str, rows: JudgedRows, file_of: Mapping[str, str], rejects: Rejects) -> None:
    source = f"{rows.name}/{path.name}"
    for _, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
            # A query named by a broken row is still this split's, and one of an evaluation file never trains.
            query_id = b"".join(raw.split(maxsplit=1)[:1]).decode("utf-8", "replace")
            if query_id in rows.queries:
                if split == "train" and file_of[query_id] in _EVALUATION_FILES:
                    raise LeftOut("query_in_two_splits")
                rows.name_query(query_id, split)
            columns = _counted(decode(raw).split(), 4)
            rows.add_judgement(query_id, columns[2], grade_of(columns[3]))


def _names(kind: str, split: str) -> tuple[str, ...]:
    if not split:
        return (f"{kind}.tsv",)
    return f"{kind}.{split}.tsv", f"{kind}.{split}.small.tsv", f"msmarco-doc{split}-{kind}.tsv"


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((path for name in names if (path := plain_or_gzip(folder, name))), None)


def _counted(columns: list[str], count: int) -> list[str]:
    if len(columns) != count:
        raise Defect("missing_field" if len(columns) < count else "too_many_columns")
    return columns


def _columns(raw: bytes, count: int) -> list[str]:
    columns = _counted([column.strip() for column in decode(raw).split("\t")], count)
    one_word(columns[0])
    return columns


def _parse(raw: bytes, name: str, documents: Mapping[str, int]) -> tuple[str, int, int]:
    """Our id of the query, and the numbers of the positive and the negative document."""
    query_id, *passages = (f"{name}/{column.strip()}" for column in _counted(decode(raw).split("\t"), 3))
    positive, negative = map(documents.get, passages)
    if positive is None or negative is None:
        raise Defect("unknown_document")
    if positive == negative:
        raise Defect("same_document")
    return query_id, positive, negative


def _sample(numbers: array, limit: int, seed: int) -> np.ndarray:
    """The distinct triplets `(n, 3)` of flat numbers, sorted, int32; of more than `limit` those of the least keys."""
    triplets = np.array(numbers, dtype=np.int32).reshape(-1, 3)
    triplets = triplets[np.lexsort(triplets.T[::-1])]
    triplets = triplets[np.append(True, (triplets[1:] != triplets[:-1]).any(axis=1))]
    if not limit or len(triplets) <= limit:
        return triplets
    keys = np.full(len(triplets), seed % 2**64, dtype=np.uint64)
    for column in triplets.T:
        keys = mixed(keys ^ column.astype(np.uint64))
    return triplets[np.sort(np.argsort(keys, kind="stable")[:limit])]
