"""The exact best documents of queries, kept up to date, and an index's cheapest search setting that finds them."""

from dataclasses import dataclass
from hashlib import sha256

import faiss
import numpy as np

from slimtower.serving.index_files import apply_settings, shards_of
from steps.index import gpu
from steps.index.build import layers_of
from steps.index.gpu import inverted_lists, knn
from steps.index.incremental import Match
from steps.index.inputs import Vectors

K = 10
_PROBES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
_EF = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
_FACTORS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]

Settings = dict[str, int]
GridPoint = tuple[int, int]
_EQUAL = 1e-5  # of a score, relative to the product of both lengths


@dataclass(frozen=True)
class Tuned:
    """Settings by faiss' names, the recall@10 that they reach, and whether that meets the target."""

    settings: Settings
    recall: float
    met: bool


@dataclass(frozen=True)
class ExactTopK:
    """Rows (int64) and inner products (float32) of the best vectors of each query, best first: `(queries, k)` each."""

    rows: np.ndarray
    scores: np.ndarray


def exact_top(vectors: Vectors, queries: np.ndarray, k: int, candidates: np.ndarray | None = None) -> ExactTopK:
    """The k best vectors, of all or of the rows `candidates`, by a scan that holds one chunk; -1 fills up too few."""
    heap = faiss.ResultHeap(len(queries), k, keep_max=True)
    for chunk_rows, chunk in vectors.at(np.arange(len(vectors)) if candidates is None else candidates):
        scores, positions = knn(queries, chunk, min(k, len(chunk)), faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, np.where(positions < 0, -1, chunk_rows[positions]))
    heap.finalize()
    return ExactTopK(heap.I, heap.D)


def updated_top(before: ExactTopK, match: Match, vectors: Vectors, queries: np.ndarray) -> tuple[ExactTopK, int]:
    """The same over the present vectors, and how many queries see every vector again, as they lost a hit."""
    k = before.rows.shape[1]
    rows, scores = match.moved()[before.rows], before.scores.copy()
    lost = np.flatnonzero((rows < 0).any(axis=1))
    intact = np.flatnonzero((rows >= 0).all(axis=1))
    if match.added and len(intact):
        heap = faiss.ResultHeap(len(intact), k, keep_max=True)
        for top in (ExactTopK(rows[intact], scores[intact]), exact_top(vectors, queries[intact], k, match.new())):
            heap.add_result(top.scores, top.rows)
        heap.finalize()
        rows[intact], scores[intact] = heap.I, heap.D
    if len(lost):
        top = exact_top(vectors, queries[lost], k)
        rows[lost], scores[lost] = top.rows, top.scores
    return ExactTopK(rows, scores), len(lost)


@dataclass(frozen=True)
class Target:
    """What a search should find: for each query `(queries, dim)` its `k` best vectors, or any that score as the k-th.

    A catalogue has many copies of a document, and an index that finds other ones than the exact search is no worse.
    """

    queries: np.ndarray
    vectors: Vectors
    least: np.ndarray  # (queries,): score of the k-th best
    k: int

    @classmethod
    def of(cls, queries: np.ndarray, vectors: Vectors, top: ExactTopK) -> "Target":
        """What `exact_top` found for the queries."""
        return cls(queries, vectors, top.scores[:, -1], top.scores.shape[1])

    def recall(self, hits: np.ndarray) -> float:
        """Mean share of what should be found among `hits`, row numbers `(queries, k)`; -1 stands for no row."""
        found = self.vectors.take(np.maximum(hits, 0).ravel()).reshape(*hits.shape, -1)
        scores = np.einsum("qd,qkd->qk", self.queries, found)
        lengths = np.linalg.norm(self.queries, axis=1)[:, None] * np.linalg.norm(found, axis=2)
        return float(np.mean((hits >= 0) & (scores >= self.least[:, None] - _EQUAL * lengths)))


def queries_digest(queries: np.ndarray) -> str:
    """Tells one set of query vectors from another."""
    return sha256(repr(queries.shape).encode() + np.ascontiguousarray(queries).tobytes()).hexdigest()


def tune(index: faiss.Index, target: Target, least_recall: float) -> Tuned:
    """Choose and apply the settings that read the fewest bytes a search among those that reach the least recall.

    If no setting reaches it, the cheapest that finds most is chosen. Recall rises with either setting, so the edge of
    what is reached is walked.
    """
    grid = _Grid(index)
    search = gpu.searching(index)
    tried: dict[GridPoint, float] = {}
    row, column = 0, len(grid.factors) - 1
    while row < len(grid.first) and column >= 0:
        reached = _reached(search, grid.settings((row, column)), target)
        tried[row, column] = reached
        if reached >= least_recall:
            column -= 1
        else:
            row += 1
    met = [point for point in tried if tried[point] >= least_recall]
    best = min(met, key=grid.cost) if met else min(tried, key=lambda point: (-tried[point], grid.cost(point)))
    apply_settings(index, grid.settings(best))
    return Tuned(grid.settings(best), tried[best], bool(met))


def tuned_again(
    index: faiss.Index, target: Target, least_recall: float, before: Settings, was_met: bool
) -> tuple[Tuned, bool]:
    """Settings for an index that changed a little, and whether they were searched for over the whole grid.

    The earlier settings stay if they still reach the least recall, or did not then; else the next costlier ones go
    first.
    """
    grid = _Grid(index)
    search = gpu.searching(index)
    earlier = grid.find(before)
    if earlier is not None:
        costlier = [(earlier[0] + row, earlier[1] + column) for row, column in ((0, 1), (1, 0), (1, 1))]
        for point in [earlier, *sorted(set(costlier) & set(grid.points()), key=grid.cost)]:
            reached = _reached(search, grid.settings(point), target)
            if reached >= least_recall or not was_met:
                apply_settings(index, grid.settings(point))
                return Tuned(grid.settings(point), reached, reached >= least_recall), False
    return tune(index, target, least_recall), True


def _reached(search: gpu.Search, settings: Settings, target: Target) -> float:
    return target.recall(search(settings, target.queries, target.k))


class _Grid:
    """What an index can be set to: the searching layer's rising values, times the re-ranking's; and what that costs."""

    def __init__(self, index: faiss.Index) -> None:
        self.index = index
        self.first, self.factors = _ladders(index)

    def points(self) -> list[GridPoint]:
        return [(row, column) for row in range(len(self.first)) for column in range(len(self.factors))]

    def settings(self, point: GridPoint) -> Settings:
        return self.first[point[0]] | self.factors[point[1]]

    def find(self, settings: Settings) -> GridPoint | None:
        """The place of these settings."""
        return next((point for point in self.points() if self.settings(point) == settings), None)

    def cost(self, point: GridPoint) -> float:
        """Bytes that one search for ten hits reads, roughly: the same on every machine, unlike a time."""
        index, settings = self.index, self.settings(point)
        layers = layers_of(shards_of(index)[0])
        ivf = inverted_lists(layers.base)
        if "efSearch" in settings:
            bytes_read = 32.0 * settings["efSearch"] * 4 * index.d
        elif ivf is not None:
            bytes_read = index.ntotal * min(1.0, settings["nprobe"] / ivf.nlist) * ivf.code_size
        else:
            bytes_read = float(index.ntotal * _code_size(layers.base))
        if layers.refine is not None:
            bytes_read += K * settings["k_factor_rf"] * _code_size(layers.refine)
        return bytes_read


def _ladders(index: faiss.Index) -> tuple[list[Settings], list[Settings]]:
    """Rising values of what the searching layer can be told (lists or graph nodes visited), and of the re-ranking."""
    space = faiss.ParameterSpace()
    space.initialize(shards_of(index)[0])
    parameters = {space.parameter_ranges.at(position).name for position in range(space.parameter_ranges.size())}
    first: list[Settings] = [{}]
    if "nprobe" in parameters:
        lists = inverted_lists(shards_of(index)[0]).nlist
        first = [{"nprobe": value} for value in [*(v for v in _PROBES if v < lists), lists]]
    elif "efSearch" in parameters:
        first = [{"efSearch": value} for value in _EF]
    if "k_factor_rf" not in parameters:
        return first, [{}]
    enough = -(-index.ntotal // K)  # re-ranks everything
    return first, [{"k_factor_rf": value} for value in [*(v for v in _FACTORS if v < enough), min(enough, 128)]]


def _code_size(index: faiss.Index) -> int:
    """Bytes of one vector in an index that scans codes; float32 where faiss does not tell."""
    try:
        return int(index.sa_code_size())
    except RuntimeError:
        return 4 * index.d
