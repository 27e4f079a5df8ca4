"""The evaluation that stands in data/ingest: its test queries, judgements and slices, and a digest of what counts."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from steps.core.errors import UserError
from steps.core.tables import read_table, table_path
from steps.promote.evidence import Evaluation

_MODULUS = 2**256


@dataclass(frozen=True)
class Questions:
    """Test queries of one data set that have a relevant document, in id order; `judgements[query][doc] = grade`."""

    dataset: str
    query_ids: list[str]
    texts: list[str]
    judgements: dict[str, dict[str, int]]


def read_questions(ingest: Path) -> list[Questions]:
    """The test questions of every data set that has any; UserError when none has."""
    judged: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_table(ingest, "qrels").to_pylist():
        if row["split"] == "test":
            judged[row["dataset"]][row["query_id"]][row["doc_id"]] = row["grade"]
    asked: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in read_table(ingest, "queries").to_pylist():
        grades = judged[row["dataset"]].get(row["query_id"], {})
        if row["split"] == "test" and any(grade > 0 for grade in grades.values()):
            asked[row["dataset"]].append((row["query_id"], row["text"]))
    if not asked:
        raise UserError(
            f"{ingest / 'qrels.parquet'}: no test query is judged, so no floor can be checked and nothing"
            " compared; give a data set test judgements and run the pipeline again"
        )
    found = []
    for dataset, rows in sorted(asked.items()):
        ids, texts = [query for query, _ in sorted(rows)], [text for _, text in sorted(rows)]
        found.append(Questions(dataset, ids, texts, {query: dict(judged[dataset][query]) for query in ids}))
    return found


def read_evaluation(ingest: Path, questions: Sequence[Questions], slice_words: Sequence[int]) -> Evaluation:
    """Queries, slices by query length, and the digest over corpus, test queries and their judgements.

    The digest does not depend on the order of rows. Splits other than test are not part of it.
    """
    sums = {item.dataset: _question_sum(item) for item in questions}
    parquet = pq.ParquetFile(table_path(ingest, "corpus"))
    for batch in parquet.iter_batches(columns=["dataset", "doc_id", "title", "content"]):
        for dataset, *document in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if dataset in sums:
                sums[dataset] = (sums[dataset] + _digest("document", *document)) % _MODULUS
    whole = hashlib.sha256("".join(f"{name}\n{sums[name]:064x}\n" for name in sorted(sums)).encode())
    return Evaluation(
        digest=whole.hexdigest(),
        queries={item.dataset: frozenset(item.query_ids) for item in questions},
        slices={name: queries for item in questions for name, queries in _slices(item, slice_words)},
    )


def _question_sum(item: Questions) -> int:
    total = sum(_digest("query", *pair) for pair in zip(item.query_ids, item.texts, strict=True))
    for query, grades in item.judgements.items():
        total += sum(_digest("judgement", query, doc, grade) for doc, grade in grades.items())
    return total % _MODULUS


def _digest(*fields: object) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(map(str, fields)).encode()).digest())


def _slices(item: Questions, slice_words: Sequence[int]) -> Iterable[tuple[str, frozenset[str]]]:
    """Slices that hold a query: `<dataset>/up to 4 words`, `/5 to 8 words`, `/9 words and more`."""
    lengths = {query: len(text.split()) for query, text in zip(item.query_ids, item.texts, strict=True)}
    edges = [0, *slice_words]
    for low, high in zip(edges, [*slice_words, None], strict=True):
        inside = frozenset(q for q, words in lengths.items() if words > low and (high is None or words <= high))
        if inside and slice_words:
            label = f"up to {high} words" if low == 0 else f"{low + 1} to {high} words"
            yield f"{item.dataset}/{label if high else f'{low + 1} words and more'}", inside
