"""BM25 of a corpus, and its fusion with dense search: which is chosen on dev, and whether it wins beyond chance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.lexical.bm25 import Bm25
from slimtower.lexical.fusion import AnyFusion, ReciprocalRank, WeightedSum, pooled
from steps.core.corpus import corpus_columns, corpus_template
from steps.core.judged import JudgedSet
from steps.core.measures import Qrels
from steps.core.progress import progress

DEPTHS = (100, 300)
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Of equals the first is chosen: ranks before scores, short lists before long ones.
GRID: list[AnyFusion] = []
for _depth in DEPTHS:
    GRID += [ReciprocalRank(depth=_depth), *(WeightedSum(depth=_depth, weight=weight) for weight in WEIGHTS)]
DEEPEST = max(DEPTHS)
STANDARD = ReciprocalRank(depth=min(DEPTHS))  # where nothing is judged to choose on
SIGNIFICANT = 0.05
_DISCOUNTS = 1 / np.log2(np.arange(2, 12))
_FLIPS, _BLOCK = 5000, 100
_CHUNK = 256  # queries whose hits are in memory at once
Hits = tuple[Sequence[np.ndarray], Sequence[Sequence[str]]]  # scores and document ids, one entry a query, best first


def corpus_bm25(ingest: Path, dataset: str) -> Bm25:
    """An index of the documents of one data set in `ingest`, in the order of the corpus."""
    template, ids, texts = corpus_template(ingest), [], []
    for doc_id, name, *fields in corpus_columns(ingest, ["doc_id", "dataset", "title", "topic", "content"]):
        if name == dataset:
            ids.append(doc_id)
            texts.append(template.text(*fields))
    return Bm25(ids, texts)


@dataclass(frozen=True)
class FusionChoice:
    """The best fusion on dev, and mean nDCG@10 of dense search there, alone and fused, of the queries that chose.

    `p_value` allows for all that could have been chosen.
    """

    fusion: AnyFusion
    queries: int
    dense: float
    fused: float
    p_value: float

    @property
    def wins(self) -> bool:
        """Whether the fused list is better beyond chance."""
        return self.fused > self.dense and self.p_value < SIGNIFICANT

    def figures(self) -> dict[str, Any]:
        """What reports keep of it, beside the fusion."""
        return {name: value for name, value in vars(self).items() if name != "fusion"}


def choose_on_dev(
    dev: JudgedSet, search: Callable[[slice], tuple[Hits, Hits]], fixed: AnyFusion | None = None
) -> FusionChoice:
    """The fusion that is best on judged dev queries, or what they say of a `fixed` one.

    `search` gives the DEEPEST best hits, dense and lexical, of the queries in some rows.
    """
    values = []
    starts = range(0, len(dev.query_ids), _CHUNK)
    for start in progress(starts, len(starts), f"{dev.dataset} fusion"):
        rows = slice(start, start + _CHUNK)
        dense, lexical = search(rows)
        values.append(trials(dev.qrels, dev.query_ids[rows], dense, lexical, dev.ignore_identical_ids))
    return choose(np.concatenate(values, axis=1), fixed)


def trials(
    qrels: Qrels, query_ids: Sequence[str], dense: Hits, lexical: Hits, ignore_identical_ids: bool = False
) -> np.ndarray:
    """nDCG@10 of every query by dense search alone and by each of GRID, `(1 + len(GRID), queries)`.

    Both lists hold DEEPEST hits. `ignore_identical_ids`: a query's hit of its own id is dropped.
    """
    pairs = zip(zip(*dense, strict=True), zip(*lexical, strict=True), strict=True)
    return np.stack(
        [
            _ndcg_by_fusion(pair, qrels[query], query if ignore_identical_ids else "")
            for query, pair in zip(query_ids, pairs, strict=True)
        ],
        axis=1,
    )


def _ndcg_by_fusion(
    pair: Sequence[tuple[np.ndarray, Sequence[str]]], judged: Mapping[str, int], ignored_id: str
) -> np.ndarray:
    """nDCG@10 of one query without the document `ignored_id`; `fuse` decides the order, so only gains are looked up."""
    values = []
    for depth in DEPTHS:
        pool = pooled(pair, depth)
        gains = np.array([max(judged.get(doc, 0), 0) for doc in pool.ids], dtype=np.float64)
        is_counted = np.array([doc != ignored_id for doc in pool.ids], dtype=bool)
        if depth == DEPTHS[0]:
            values.append(
                _dcg(pool.scores[:1, is_counted], np.where(np.isfinite(pool.scores[0]), gains, 0.0)[is_counted])
            )
        fused = np.stack([fusion.fused(pool) for fusion in GRID if fusion.depth == depth])
        values.append(_dcg(fused[:, is_counted], gains[is_counted]))
    best = np.array(sorted((max(grade, 0) for grade in judged.values()), reverse=True)[:10], dtype=np.float64)
    ideal = float(best @ _DISCOUNTS[: len(best)])
    return np.concatenate(values) / ideal if ideal else np.zeros(1 + len(GRID))


def _dcg(scores: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """DCG@10, `(fusions,)`, of scores `(fusions, documents)`; `gains` `(documents,)` are of ids in descending order."""
    order = np.argsort(-scores.astype(np.float32), axis=1, kind="stable")[:, :10]
    dcg: np.ndarray = gains[order] @ _DISCOUNTS[: order.shape[1]]
    return dcg


def choose(values: np.ndarray, fixed: AnyFusion | None = None) -> FusionChoice:
    """The fusion with the best mean of `values`, those of `trials`; or what they say of `fixed`, one of GRID."""
    best = int(values[1:].mean(axis=1).round(12).argmax())  # what differs by rounding alone is equal
    best = best if fixed is None else GRID.index(fixed)
    return FusionChoice(
        fusion=GRID[best],
        queries=values.shape[1],
        dense=float(values[0].mean()),
        fused=float(values[1 + best].mean()),
        p_value=chance_of(values[1:] - values[0], best),
    )


def chance_of(differences: np.ndarray, chosen: int) -> float:
    """How often the best row of `differences` `(rows, queries)` would look as good as the chosen one if none were.

    One-sided randomisation test over queries (Smucker, Allan and Carterette 2007) with the greatest statistic of all
    rows (Westfall and Young 1993, maxT): signs of whole queries are flipped, so rows stay as alike as they are. The
    statistic is sum / root of the sum of squares, with which a t-value rises.
    """
    size = np.sqrt((differences**2).sum(axis=1))
    scaled = (differences / np.where(size > 0, size, 1)[:, None]).T
    observed = scaled[:, chosen].sum() - 1e-9
    generator, above = np.random.default_rng(0), 0
    for _ in range(_FLIPS // _BLOCK):
        signs = generator.choice(np.array([-1.0, 1.0]), (_BLOCK, len(scaled)))
        above += int(((signs @ scaled).max(axis=1) >= observed).sum())
    return (1 + above) / (1 + _FLIPS)
