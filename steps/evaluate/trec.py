"""TREC run files: `qid Q0 docid rank score tag`, one line a hit."""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from steps.core.measures import trec_order


def write_hits(
    file: TextIO,
    dataset: str,
    query_ids: Sequence[str],
    doc_ids: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
    tag: str,
    depth: int,
) -> None:
    """Append the first `depth` hits of each query, ids as the data set itself spells them (no `<dataset>/`).

    Scores keep the nine digits that give a float32 back exactly, so that the file scores what was measured.
    """
    prefix = f"{dataset}/"
    for query, docs, values in zip(query_ids, doc_ids, scores, strict=True):
        query_name = query.removeprefix(prefix)
        for rank, position in enumerate(trec_order(docs, values)[:depth], start=1):
            doc_name = docs[position].removeprefix(prefix)
            file.write(f"{query_name} Q0 {doc_name} {rank} {values[position]:.9g} {tag}\n")


def read_hits(path: Path) -> dict[str, list[str]]:
    """Document ids by query id, best first, of a file that `write_hits` wrote; a query without hits is not there."""
    hits: dict[str, list[str]] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            query, _, doc, _ = line.split(" ", 3)
            hits.setdefault(query, []).append(doc)
    return hits
