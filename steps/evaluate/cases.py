"""Cases: the dev queries on which the best student loses and gains most, with what it and the teacher find for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.core.corpus import corpus_batches
from steps.core.judged import JudgedSet
from steps.core.measures import NDCG, UNCUT
from steps.evaluate.measuring import Result
from steps.evaluate.scoring import Scored

_START = 220  # characters of a document
Way = Literal["lost", "gained"]


@dataclass(frozen=True)
class CaseQuery:
    """A query, its nDCG@10 by both, and the rank at which each has the first relevant document; None: not found."""

    dataset: str
    row: int
    way: Way
    teacher: float
    student: float
    teacher_rank: int | None
    student_rank: int | None


@dataclass(frozen=True)
class Hit:
    """A document in a list of hits; `start` is how its content begins, `relevant` None where nobody judged it."""

    doc_id: str
    title: str
    start: str
    relevant: bool | None


@dataclass(frozen=True)
class Case:
    """A query with the best hits of both."""

    asked: CaseQuery
    text: str
    teacher: Sequence[Hit]
    student: Sequence[Hit]


def choose_cases(teacher: Sequence[Scored], student: Sequence[Scored], count: int) -> list[CaseQuery]:
    """The `count` queries with the largest drop of nDCG@10, then the `count` with the largest gain; ties by query id.

    Both sequences hold the same judged sets in order.
    """
    entries: dict[Way, list[tuple[float, str, CaseQuery]]] = {"lost": [], "gained": []}
    for ours, theirs in zip(student, teacher, strict=True):
        judged, drop = ours.judged, theirs.values[NDCG] - ours.values[NDCG]
        for row in np.flatnonzero(drop).tolist():
            way: Way = "lost" if drop[row] > 0 else "gained"
            teacher_ndcg, student_ndcg = (float(item.values[NDCG][row]) for item in (theirs, ours))
            teacher_rank, student_rank = (_rank(item.values[UNCUT][row]) for item in (theirs, ours))
            query = CaseQuery(judged.dataset, row, way, teacher_ndcg, student_ndcg, teacher_rank, student_rank)
            entries[way].append((-abs(float(drop[row])), judged.query_ids[row], query))
    return [query for way in entries.values() for _, _, query in sorted(way, key=lambda entry: entry[:2])[:count]]


def read_cases(ingest: Path, teacher: Result, student: Result, count: int) -> list[Case]:
    """Cases among the dev queries, whose texts may be looked at without knowing the test; [] without any."""
    chosen = choose_cases(teacher.of_split("dev"), student.of_split("dev"), count)
    sets = {item.judged.dataset: item.judged for item in student.of_split("dev")}
    hits = [(teacher.best[query.dataset][query.row], student.best[query.dataset][query.row]) for query in chosen]
    texts = _documents(ingest, {doc_id for both in hits for ids in both for doc_id in ids})
    cases = []
    for query, both in zip(chosen, hits, strict=True):
        judged = sets[query.dataset]
        lists = (listed_hits(ids, judged, query.row, texts) for ids in both)
        cases.append(Case(query, judged.texts[query.row], *lists))
    return cases


def _documents(ingest: Path, doc_ids: set[str]) -> dict[str, tuple[str, str]]:
    ids, documents = pa.array(sorted(doc_ids), pa.string()), {}
    for batch in corpus_batches(ingest, ["doc_id", "title", "content"]) if doc_ids else ():
        for row in batch.filter(pc.is_in(batch["doc_id"], ids)).to_pylist():
            documents[row["doc_id"]] = (row["title"], _start(row["content"]))
    return documents


def listed_hits(doc_ids: Sequence[str], judged: JudgedSet, row: int, texts: Mapping[str, tuple[str, str]]) -> list[Hit]:
    """Hits of the query in this row, with titles and starts of `texts`."""
    grades = judged.qrels[judged.query_ids[row]]
    relevant = {doc_id: grade >= judged.relevant_from for doc_id, grade in grades.items()}
    return [Hit(doc_id, *texts.get(doc_id, ("", "")), relevant.get(doc_id)) for doc_id in doc_ids]


def _start(content: str) -> str:
    text = " ".join(content.split())
    return text if len(text) <= _START else text[:_START].rsplit(" ", 1)[0] + " …"


def _rank(reciprocal: float) -> int | None:
    return round(1 / reciprocal) if reciprocal > 0 else None
