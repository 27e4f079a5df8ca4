"""Query planner: the importance of each term of a query, S(q) of ScalingNote's Algorithm 1.

A planner gives one row (query, term, importance) for each distinct term of each query. The paper takes a score in
[0, 1] from its platform and says nothing of its scale. Here the importances of one query sum to 1: an importance is the
share of the query's meaning that the term carries, whatever the query's length, and at most 1 / threshold terms of a
query can lie above a threshold, which is what keeps the association joins linear.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from slimtower.common.unicode_norm import as_read, undotted
from steps.core.progress import progress
from steps.core.texts import lowered_places, words
from steps.encoders.bases import resolve_base
from steps.mine.catalogue import key
from steps.mine.engine import Engine
from steps.mine.params import MineParams

Scores = dict[str, float]  # term -> importance, of one query

_TERMS = pa.schema([("query", pa.int64()), ("term", pa.int64()), ("dataset", pa.string()), ("word", pa.string())])
_IMPORTANCES = _TERMS.append(pa.field("importance", pa.float64()))
OCCLUSION_MODEL = "all-MiniLM-L6-v2"  # the bundled base; never the trained teacher, which learns from what is mined
_BATCH, _MAX_TOKENS = 64, 64  # of the planner occlusion: queries are short
_FIXED_POINT = 1_000_000  # idf in millionths: integer sums are equal on any engine, in any order of rows
_WINDOW_BATCHES = 64  # batches encoded together: what fits in memory, and what `encode` sorts by length
_DECIMALS = 4  # the last bits of an embedding depend on the platform and on what else is in the batch


def importances(engine: Engine, queries: ir.Table, params: MineParams, term_scores: ir.Table) -> ir.Table:
    """Importances by the planner that params name: (query, term, dataset, word, importance).

    queries: (query, dataset, text); term_scores: (term, score), read by the planner `table` alone. A term's key belongs
    to its data set, so that queries of two data sets never have a term in common.
    """
    if params.planner == "idf":
        return engine.keep(idf_importances(engine, query_terms(engine, queries)))
    if params.planner == "table":
        scores = {row["term"]: float(row["score"]) for row in engine.rows(term_scores).to_pylist()}
        if not scores:
            raise UserError(
                "params.yaml: mine.planner: 'table' needs term scores and ingest read none; name a TSV of term and"
                " score in ingest.term_scores"
            )
        return scored_terms(engine, queries, partial(table_importances, scores=scores))
    return scored_terms(engine, queries, _occlusion)


def query_terms(engine: Engine, queries: ir.Table) -> ir.Table:
    """Distinct terms of each query: one row (query, term, dataset, word)."""
    return engine.map_batches(queries.select("query", "dataset", "text"), _distinct_terms, _TERMS, "terms of queries")


def scored_terms(engine: Engine, queries: ir.Table, score: Callable[[list[str]], Iterable[Scores]]) -> ir.Table:
    """Importances by a function of query texts."""

    def convert(batch: pa.RecordBatch) -> pa.Table:
        importances = list(score(batch["text"].to_pylist()))
        values = pa.array([value for shares in importances for value in shares.values()], pa.float64())
        return _term_rows(batch, importances).append_column("importance", values)

    chosen = queries.select("query", "dataset", "text").order_by("text", "query")
    return engine.map_batches(chosen, convert, _IMPORTANCES, "importance of terms")


@lru_cache(maxsize=2**20)
def term_key(dataset: str, word: str) -> int:
    """Key of a word in a data set."""
    return key(f"{dataset}\0{word}")


def idf_importances(engine: Engine, terms: ir.Table) -> ir.Table:
    """Importance of a term = its idf divided by the sum over the query's terms.

    idf = ln(1 + (N - df + 1/2) / (df + 1/2)), N and df counted over the data set's queries: positive, and next to
    nothing for a word that every query holds, so that no list of stop words is needed.
    """
    sizes = terms.group_by("dataset").aggregate(total=terms.query.nunique())
    frequencies = terms.group_by("dataset", "term").aggregate(frequency=lambda t: t.count())
    counted = frequencies.join(sizes, "dataset")
    odds = (counted.total - counted.frequency + 0.5) / (counted.frequency + 0.5)
    idf = ibis.greatest(((odds + 1).ln() * _FIXED_POINT).round().cast("int64"), ibis.literal(1, "int64"))
    weighted = terms.join(engine.keep(counted.select("term", idf=idf)), "term")
    share = weighted.idf.cast("float64") / weighted.idf.sum().over(group_by="query").cast("float64")
    return weighted.select("query", "term", "dataset", "word", importance=share)


def table_importances(texts: list[str], scores: Mapping[str, float]) -> list[Scores]:
    """Importance of each distinct term of each text: its score divided by the sum over the text's terms.

    A term that the table lacks gets the table's largest score: a table holds the common words, and what it does not
    know is rare and therefore important.
    """
    largest = max(scores.values())
    return [shares({term: scores.get(term, largest) for term in words(text)}) for text in texts]


def shares(weights: Mapping[str, float]) -> Scores:
    """Weights of at least 0 as shares of their sum; equal shares where all of them are 0."""
    total = math.fsum(weights.values())
    if total == 0:
        return dict.fromkeys(weights, 1 / max(len(weights), 1))
    return {term: weight / total for term, weight in weights.items()}


class OcclusionPlanner:
    """Importances by occlusion with a frozen tower."""

    def __init__(self, model: str, batch_size: int, max_length: int) -> None:
        """Load `model` (bundled name, folder or hub name) to read at most `max_length` tokens; UserError when it fails.

        A tower that reads less than `max_length` keeps its limit.
        """
        from steps.encoders.towers import encode, load_tower  # torch, which no other planner needs

        self.batch_size = batch_size
        self.tower = load_tower(resolve_base(model))
        self._encode = partial(encode, self.tower, role="query", batch_size=batch_size)
        if hasattr(self.tower[0], "auto_model"):  # a table of tokens reads all of a text
            self.tower.max_seq_length = min(max_length, self.tower.max_seq_length or max_length)

    def importances(self, texts: list[str]) -> list[Scores]:
        """Importance of each distinct term of each text, float64; those of a text sum to 1 but for rounding.

        The change of a term is 1 - cos(e(q), e(q without all its occurrences)), clipped at 0, its importance the share
        of the sum of changes; equal shares where nothing changes. A term beyond `max_length` changes nothing.
        """
        importance_by_text: dict[str, Scores] = {}
        distinct = list(dict.fromkeys(texts))
        for window in self._windows(distinct):
            importance_by_text |= self._of_window(window)
        return [importance_by_text[text] for text in texts]

    def _windows(self, texts: list[str]) -> Iterator[dict[str, dict[str, str]]]:
        window: dict[str, dict[str, str]] = {}
        size = 0
        for text in progress(texts, len(texts), "occlusion"):
            window[text] = occluded(text)
            size += len(window[text]) + 1
            if size >= _WINDOW_BATCHES * self.batch_size:
                yield window
                window, size = {}, 0
        yield window

    def _of_window(self, window: dict[str, dict[str, str]]) -> dict[str, Scores]:
        several = {text: without for text, without in window.items() if len(without) > 1}
        distinct = dict.fromkeys(variant for text, without in several.items() for variant in (text, *without.values()))
        row = {text: number for number, text in enumerate(distinct)}
        vectors = _normalised(self._encode(list(distinct)))
        importance_by_text = {text: dict.fromkeys(without, 1.0) for text, without in window.items()}
        for text, without in several.items():
            similar = vectors[[row[variant] for variant in without.values()]] @ vectors[row[text]]
            changes = np.maximum(1.0 - similar, 0.0)
            importance_by_text[text] = {
                term: round(share, _DECIMALS)
                for term, share in shares(dict(zip(without, changes.tolist(), strict=True))).items()
            }
        return importance_by_text


@lru_cache(maxsize=1)
def _occlusion_planner() -> OcclusionPlanner:
    return OcclusionPlanner(OCCLUSION_MODEL, batch_size=_BATCH, max_length=_MAX_TOKENS)


def _occlusion(texts: list[str]) -> Iterable[Scores]:
    return _occlusion_planner().importances(texts)  # a function, as Spark sends it to other processes


def occluded(text: str) -> dict[str, str]:
    """Each distinct term of a text, in order -> the text, as it is read, without any of the term's occurrences."""
    text = as_read(text)
    lowered = undotted(text).lower()
    origin = [at for at, character in enumerate(undotted(text)) for _ in character.lower()]  # some lower to two
    origin.append(len(text))
    spans: dict[str, list[tuple[int, int]]] = {}
    for start, end in lowered_places(lowered):
        spans.setdefault(lowered[start:end], []).append((origin[start], origin[end - 1] + 1))
    return {term: _without(text, spans[term]) for term in spans}


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    return " ".join("".join(text[start:end] for start, end in zip(starts, ends, strict=True)).split())


def _normalised(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1 in float64, `(n, dim)`; a row of zeros stays one, and is unlike everything."""
    exact = vectors.astype(np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def _distinct_terms(batch: pa.RecordBatch) -> pa.Table:
    return _term_rows(batch, [list(dict.fromkeys(words(text))) for text in batch["text"].to_pylist()])


def _term_rows(batch: pa.RecordBatch, terms: Sequence[Collection[str]]) -> pa.Table:
    """A row for each term of each query, column by column: a log of ten million queries has fifty million terms."""
    rows = pa.array(np.repeat(np.arange(len(terms)), [len(query_terms) for query_terms in terms]), pa.int64())
    datasets, words = batch["dataset"].take(rows), [word for query_terms in terms for word in query_terms]
    keys = pa.array(map(term_key, datasets.to_pylist(), words), pa.int64())
    return pa.table([batch["query"].take(rows), keys, datasets, pa.array(words, pa.string())], schema=_TERMS)
