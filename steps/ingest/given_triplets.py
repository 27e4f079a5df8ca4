"""Training triplets that a data set brings: MS MARCO's qidpidtriples, a TSV of query, positive and negative id."""

from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from steps.ingest.coded_columns import coded
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, decode, read_lines
from steps.ingest.source_data import SourceData

GIVEN_TRIPLETS: Final = "given_triplets"
_ROWS_AT_ONCE = 2**20  # triplets in memory before a sample is drawn from them


def read_given_triplets(
    path: Path, data: SourceData, *, key: str, seed: int, limit: int, max_reject_ratio: float, rejects: Rejects
) -> pa.Table:
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
    for line, raw in rejects.watched(read_lines(path), source, path, max_reject_ratio):
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
    rejects.check(source, path, max_reject_ratio)
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
