"""Evaluation sets: the queries of one split of one data set, with their relevance judgements."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.core.corpus import corpus_batches
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
    """One set for each data set and split that has judged queries."""
    judged: dict[tuple[str, str], dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_table(ingest, "qrels").to_pylist():
        judged[row["dataset"], row["split"]][row["query_id"]][row["doc_id"]] = row["grade"]
    queries = read_table(ingest, "queries").to_pylist()
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for row in queries:
        key = (row["dataset"], row["split"])
        if any(grade > 0 for grade in judged[key].get(row["query_id"], {}).values()):
            found[key].append((row["query_id"], row["text"]))
    datasets = sorted({dataset for dataset, _ in found})
    sets = []
    for dataset in datasets:
        for split in splits:
            rows = sorted(found.get((dataset, split), ()))
            if rows:
                ids, texts = [row[0] for row in rows], [row[1] for row in rows]
                sets.append(
                    EvaluationSet(dataset, split, ids, texts, {i: dict(judged[dataset, split][i]) for i in ids})
                )
    return sets


def unjudged_datasets(ingest: Path, questions: Sequence[EvaluationSet]) -> list[str]:
    """Data sets of the corpus without a test set among the questions, sorted."""
    names: set[str] = set()
    for batch in corpus_batches(ingest, ["dataset"]):
        names.update(batch["dataset"].unique().to_pylist())
    return sorted(names - {item.dataset for item in questions if item.split == "test"})
