"""Texts of the documents that somebody names: the corpus is read once, and only these are kept."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.core.corpus import corpus_columns, corpus_template
from steps.core.tables import table_path


def texts_of(ingest: Path, doc_ids: Iterable[str]) -> dict[str, str]:
    """Text of each document as a ranker reads it; those that the corpus in `ingest` lacks are left out."""
    selected, template = set(doc_ids), corpus_template(ingest)
    return {
        doc_id: template.text(*fields)
        for doc_id, *fields in corpus_columns(ingest, ["doc_id", "title", "topic", "content"])
        if doc_id in selected
    }


def check_documents(doc_ids: Iterable[str], texts: Mapping[str, str], where: Path) -> None:
    """UserError when a candidate is not among the `texts` that the corpus of `where` has."""
    missing = next((doc_id for doc_id in doc_ids if doc_id not in texts), None)
    if missing is not None:
        raise UserError(
            f"candidates: document {missing!r} is not in the tables of {where}; run ingest and candidates again so that"
            " both come from the same data"
        )


def random_documents(ingest: Path, counts: Mapping[str, int], seed: int) -> dict[str, list[str]]:
    """Ids of as many documents of each data set as `counts` says, drawn with replacement."""
    random = np.random.default_rng(seed)
    corpus = pq.read_table(table_path(ingest, "corpus"), columns=["doc_id", "dataset"])
    sample: dict[str, list[str]] = {}
    for dataset, count in sorted(counts.items()):
        ids = corpus.filter(pc.equal(corpus["dataset"], dataset))["doc_id"]
        sample[dataset] = ids.take(random.integers(len(ids), size=count)).to_pylist()
    return sample
