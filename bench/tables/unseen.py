"""Retention where labels could not have been learned by heart."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.tables.pipeline import Pipeline
from bench.tables.verdicts import Measured
from steps.core.judged import JudgedSet
from steps.core.tables import read_table


def unseen_queries(pipeline: Pipeline) -> dict[str, np.ndarray]:
    """By data set, the test queries none of whose relevant documents is relevant to a training query, `(queries,)`."""
    judged = read_table(pipeline.ingest, "qrels").to_pylist()
    seen = {(row["dataset"], row["doc_id"]) for row in judged if row["split"] == "train" and row["grade"] > 0}

    def unseen(item: JudgedSet, query: str) -> bool:
        relevant = [document for document, grade in item.qrels[query].items() if grade > 0]
        return not any((item.dataset, document) in seen for document in relevant)

    return {
        item.dataset: np.array([unseen(item, query) for query in item.query_ids])
        for item in pipeline.judged_sets
        if item.split == "test"
    }


def unseen_retention(
    line: Measured, teacher: Mapping[str, list[float]], chosen: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Student / teacher over some of each data set's test queries, seeds averaged; None where there are none.

    `teacher` holds nDCG@10 of each test query, `chosen` which of them count, both by data set.
    """
    found: dict[str, Any] = {}
    for name, mask in chosen.items():
        student, whole = line.by_query("test", name)[mask], np.array(teacher[name])[mask]
        retention = float(student.mean() / whole.mean()) if whole.any() else None
        found[name] = {"queries": int(mask.sum()), "retention": retention}
    return found
