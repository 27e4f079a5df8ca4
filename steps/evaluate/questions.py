"""Evaluation sets: the queries of one split of one data set, with their relevance judgements."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.core.errors import UserError
from steps.core.tables import read_table


@dataclass(frozen=True)
class EvaluationSet:
    """Queries of a split that have a relevant document, in query id order, and `judgements[query][doc] = grade`."""

    dataset: str
    split: str
    query_ids: list[str]
    texts: list[str]
    judgements: dict[str, dict[str, int]]


def read_evaluation_sets(ingest: Path, splits: Sequence[str]) -> list[EvaluationSet]:
    """One set for each data set and split that has judged queries; UserError when a data set has none for test."""
    judged: dict[tuple[str, str], dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_table(ingest, "qrels").to_pylist():
        judged[row["dataset"], row["split"]][row["query_id"]][row["doc_id"]] = row["grade"]
    queries = read_table(ingest, "queries").to_pylist()
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for row in queries:
        key = (row["dataset"], row["split"])
        if any(grade > 0 for grade in judged[key].get(row["query_id"], {}).values()):
            found[key].append((row["query_id"], row["text"]))
    datasets = sorted({row["dataset"] for row in queries if row["split"] != "pool"})
    for dataset in datasets:
        if not found[dataset, "test"]:
            raise UserError(
                f"{ingest / 'qrels.parquet'}: data set {dataset!r} has no test query with a relevant document;"
                " give it a test split with judgements"
            )
    sets = []
    for dataset in datasets:
        for split in splits:
            rows = sorted(found[dataset, split])
            if rows:
                ids, texts = [row[0] for row in rows], [row[1] for row in rows]
                sets.append(
                    EvaluationSet(dataset, split, ids, texts, {i: dict(judged[dataset, split][i]) for i in ids})
                )
    return sets
