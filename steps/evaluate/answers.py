"""Relaxed recall: does one of the first k documents hold an answer string? As DPR's evaluation compares them.

Strict recall, of the documents that are judged, is `Success@k`. (EmbedDistill, Sec. 5; DPR, Karpukhin et al. 2020,
`has_answer` of its code: NFD, runs of letters, marks and digits or single other signs, lower case.)
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import regex

from steps.core.corpus import corpus_columns
from steps.core.judged import JudgedSet
from steps.core.measures import per_query
from steps.core.tables import read_table
from steps.evaluate.params import ANSWER

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")

Answering = Mapping[str, Sequence[str]]  # query id -> ids of the documents that hold one of its answers


def answer_measures(names: Iterable[str]) -> list[str]:
    """Those that are `Answer@k`."""
    return [name for name in names if ANSWER.fullmatch(name)]


def tokens(text: str) -> list[str]:
    """As DPR compares texts: tokens of the NFD form, in lower case."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def holds(text: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether the tokens of an answer stand one after the other in those of a text."""
    width = len(answer)
    return any(list(text[at : at + width]) == list(answer) for at in range(len(text) - width + 1))


def score_answers(
    names: Sequence[str],
    answering: Answering,
    query_ids: Sequence[str],
    doc_ids: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    """1 where one of the first k hits holds an answer, else 0, NaN for a query without answers: `(queries,)` each."""
    qrels = {query: dict.fromkeys(answering.get(query, ()), 1) for query in query_ids}
    success = {name: f"Success@{name.removeprefix('Answer@')}" for name in names}
    values = per_query(list(success.values()), qrels, query_ids, doc_ids, scores)
    has_answer = np.array([query in answering for query in query_ids])
    return {name: np.where(has_answer, values[measure], np.nan) for name, measure in success.items()}


def answering_documents(ingest: Path, judged: Iterable[JudgedSet]) -> dict[str, dict[str, list[str]]]:
    """`[data set][query id]` -> ids of the documents whose content holds an answer, of queries with answers.

    Every document of such a data set is read once. {} where no source brought answers.
    """
    rows = read_table(ingest, "answers").to_pylist()
    answers = {row["query_id"]: [answer for answer in map(tokens, row["answers"]) if answer] for row in rows}
    doc_ids: dict[str, dict[str, list[str]]] = {}
    starts: dict[str, dict[str, list[tuple[list[str], str]]]] = {}  # data set, first token -> answers and their queries
    for item in judged:
        for query in item.query_ids:
            if query in answers:
                doc_ids.setdefault(item.dataset, {})[query] = []
                by_token = starts.setdefault(item.dataset, defaultdict(list))
                for answer in answers[query]:
                    by_token[answer[0]].append((answer, query))
    if not doc_ids:
        return {}
    for doc_id, dataset, content in corpus_columns(ingest, ["doc_id", "dataset", "content"]):
        if dataset in starts:
            for query in _answered(tokens(content), starts[dataset]):
                doc_ids[dataset][query].append(doc_id)
    return doc_ids


def _answered(text: Sequence[str], starts: Mapping[str, Sequence[tuple[list[str], str]]]) -> set[str]:
    """Queries with an answer in a text."""
    queries = set()
    for token in starts.keys() & set(text):
        queries |= {query for answer, query in starts[token] if holds(text, answer)}
    return queries
