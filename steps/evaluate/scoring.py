"""A system's answers to a judged set, scored: measures by query, answer strings, AUC over judged pairs, run files."""

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import regex
from scipy.stats import rankdata

from steps.core.corpus import corpus_columns
from steps.core.judged import JudgedSet, other_hits, tied_hits
from steps.core.measures import NDCG, UNCUT, per_query, trec_order
from steps.core.progress import progress
from steps.core.tables import read_table
from steps.evaluate.params import ANSWER, REL, SAT
from steps.evaluate.systems import Hits, Search


def write_hits(file: TextIO, dataset: str, query_ids: Sequence[str], hits: Hits, tag: str, depth: int) -> None:
    """Append the first `depth` hits of each query, ids as the data set itself spells them (no `<dataset>/`).

    Nine digits of a score give a float32 back exactly.
    """
    prefix = f"{dataset}/"
    for query, values, docs in zip(query_ids, *hits, strict=True):
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
    """`[data set][query id]` -> ids of the documents whose content holds an answer; {} if no source has answers."""
    rows = read_table(ingest, "answers").to_pylist()
    answers = {row["query_id"]: [answer for answer in map(tokens, row["answers"]) if answer] for row in rows}
    doc_ids: dict[str, dict[str, list[str]]] = {}
    starts: dict[str, dict[str, list[tuple[list[str], str]]]] = {}  # data set, first token -> answers and their queries
    for item in judged:
        for query in answers.keys() & set(item.query_ids):
            doc_ids.setdefault(item.dataset, {})[query] = []
            by_token = starts.setdefault(item.dataset, defaultdict(list))
            for answer in answers[query]:
                by_token[answer[0]].append((answer, query))
    if not doc_ids:
        return {}
    for doc_id, dataset, content in corpus_columns(ingest, ["doc_id", "dataset", "content"]):
        if dataset in starts:
            text, by_first = tokens(content), starts[dataset]
            pairs = (pair for token in by_first.keys() & set(text) for pair in by_first[token])
            for query in {query for answer, query in pairs if holds(text, answer)}:
                doc_ids[dataset][query].append(doc_id)
    return doc_ids


_SCORES = 2_000_000  # hits in memory at once


def pooled_auc(names: Iterable[str], search: Search, judged: JudgedSet, depth: int) -> dict[str, float]:
    """Those of REL and SAT that are named and have pairs of both kinds; `depth`: hits that are asked for at first."""
    labels = {name: _pair_labels(judged, name) for name in (REL, SAT) if name in names}
    labels = {name: by_pair for name, by_pair in labels.items() if len(set(by_pair.values())) == 2}
    doc_ids: dict[str, set[str]] = defaultdict(set)
    for query, doc in set().union(*labels.values()):
        doc_ids[query].add(doc)
    scores = _pair_scores(search, judged, doc_ids, depth)
    return {
        name: auc(np.array([scores.get(pair, -np.inf) for pair in by_pair]), np.array(list(by_pair.values())))
        for name, by_pair in labels.items()
    }


def auc(scores: np.ndarray, relevant: np.ndarray) -> float:
    """Area under the ROC curve of pairs of both kinds, `(pairs,)` (Mann and Whitney's rank sum); ties count half."""
    good = int(relevant.sum())
    bad = len(relevant) - good
    return float((rankdata(scores)[relevant].sum() - good * (good + 1) / 2) / (good * bad))


def _pair_labels(judged: JudgedSet, name: str) -> dict[tuple[str, str], bool]:
    relevance = judged.qrels | {query: dict(judgements) for query, (_, judgements) in judged.without_relevant.items()}
    grades, threshold = (relevance, judged.relevant_from) if name == REL else (judged.satisfaction, 1)
    return {(query, doc): grade >= threshold for query, row in grades.items() for doc, grade in row.items()}


def _pair_scores(
    search: Search, judged: JudgedSet, doc_ids: Mapping[str, set[str]], depth: int
) -> dict[tuple[str, str], float]:
    """Scores of pairs by query and document; what is below the first hits is sought among ten times more, and so on.

    What BM25 does not find shares no term with the query, and has no score.
    """
    scores: dict[tuple[str, str], float] = {}
    texts = dict(zip(judged.query_ids, judged.texts, strict=True))
    texts |= {query: text for query, (text, _) in judged.without_relevant.items()}
    pending = sorted(doc_ids)
    while pending:
        deeper, chunk = [], max(1, _SCORES // depth)
        for start in range(0, len(pending), chunk):
            queries = pending[start : start + chunk]
            results = search(judged.dataset, [texts[query] for query in queries], depth)
            for query, values, docs in zip(queries, *results, strict=True):
                hits = dict(zip(docs, values.tolist(), strict=True))
                scores |= {(query, doc): hits[doc] for doc in doc_ids[query] & hits.keys()}
                if len(docs) == depth and not doc_ids[query] <= hits.keys():
                    deeper.append(query)
        pending, depth = deeper, depth * 10
    return scores


BEST = 10  # hits of each query that are kept
_CHUNK = 256  # queries whose hits are in memory at once: 256,000 hits at k = 1000


@dataclass(frozen=True)
class Scored:
    """Per-query values of one system on one judged set: each measure, and UNCUT, as float64 `(queries,)`.

    NaN: the query has no answer strings to look for. `pooled`: measures over all judged pairs at once.
    """

    judged: JudgedSet
    values: dict[str, np.ndarray]
    pooled: Mapping[str, float] = field(default_factory=dict)

    def means(self) -> dict[str, float]:
        """Mean of each published measure, and what is pooled."""
        return {name: float(np.nanmean(self.values[name])) for name in self.values if name != UNCUT} | dict(self.pooled)


def score(name: str, search: Search, judged: JudgedSet, k: int, *, exact: bool = False) -> Scored:
    """Answer every query with `k` hits and score them by nDCG@10; `name` is shown as the work goes on.

    `exact`: of an exact index what ties with the last hit counts as well.
    """
    return score_and_keep(name, search, judged, k, [NDCG], take=tied_hits if exact else other_hits)[0]


def score_and_keep(
    name: str,
    search: Search,
    judged: JudgedSet,
    k: int,
    measures: Sequence[str],
    run_file: Path | None = None,
    run_depth: int = 0,
    take: Callable[..., Hits] = other_hits,
) -> tuple[Scored, Hits]:
    """Score by the named measures, and keep the BEST hits of each query; write `run_depth` hits to a TREC run file.

    `take`: how hits are taken from the search (steps/core/judged.py).
    """
    answers = answer_measures(measures)
    ranked = [measure for measure in measures if measure not in answers]
    chunks: dict[str, list[np.ndarray]] = {}
    best: Hits = ([], [])
    starts = range(0, len(judged.query_ids), _CHUNK)
    with ExitStack() as stack:
        file = stack.enter_context(run_file.open("w", encoding="utf-8")) if run_file else None
        for start in progress(starts, len(starts), f"{judged.dataset} {judged.split} {name}"):
            ids = judged.query_ids[start : start + _CHUNK]
            search_chunk = partial(search, judged.dataset, judged.texts[start : start + _CHUNK])
            scores, doc_ids = take(judged, ids, search_chunk, k)
            values = per_query([*ranked, "RR"], judged.qrels, ids, doc_ids, scores, judged.relevant_from)
            values = {measure: values[measure] for measure in ranked} | {UNCUT: values["RR"]}
            if judged.answering:
                values |= score_answers(answers, judged.answering, ids, doc_ids, scores)
            for measure, chunk in values.items():
                chunks.setdefault(measure, []).append(chunk)
            best[0].extend(row[:BEST].copy() for row in scores)  # a view would keep all hits in memory
            best[1].extend(row[:BEST] for row in doc_ids)
            if file:
                write_hits(file, judged.dataset, ids, (scores, doc_ids), name, run_depth)
    return Scored(judged, {measure: np.concatenate(arrays) for measure, arrays in chunks.items()}), best
