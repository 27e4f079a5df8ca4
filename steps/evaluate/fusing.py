"""A dense system and BM25 as one: which fusion, chosen on dev queries, and how long it takes from text to hits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slimtower.common.files import folder_bytes
from slimtower.lexical.fusion import AnyFusion, fuse, pooled
from steps.core.judged import JudgedSet
from steps.endpoint.module import asking_anew
from steps.evaluate.latency import Stopwatch, one_thread, sample
from steps.evaluate.systems import Hits, Lexical, Search, Student, Teacher, digest
from steps.retrieval.lexical import DEEPEST, GRID, STANDARD, FusionChoice, choose_on_dev


@dataclass(frozen=True)
class Fused:
    """A dense system and BM25, both searched, their hits fused; dense hits are of the index that serves.

    On a data set of which a student's release carries a BM25 index, that index is searched and the release's fusion is
    the one: what serves is measured.
    """

    dense: Teacher | Student
    lexical: Lexical

    @property
    def name(self) -> str:
        """`2l+bm25`."""
        return f"{self.dense.name}+{self.lexical.name}"

    @property
    def content(self) -> str:
        """A digest of all that its answers depend on."""
        return digest(self.dense.content, self.lexical.content)

    def carried(self, dataset: str) -> AnyFusion | None:
        """The fusion of the release; None where it is still to be chosen."""
        return self.dense.release.fusion(dataset) if isinstance(self.dense, Student) else None

    def lexical_search(self, shared: Search) -> Search:
        """The BM25 search of the release where it carries one, else `shared`."""

        def search(dataset: str, texts: list[str], k: int) -> Hits:
            fusion = self.carried(dataset)
            return self.dense.release.lexical(dataset).search(texts, k) if fusion else shared(dataset, texts, k)

        return search


class CachedSearch:
    """A search that keeps the first DEEPEST hits of each query, so that a fusion of them searches nothing again."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._hits: dict[tuple[str, str], tuple[np.ndarray, list[str]]] = {}

    def __call__(self, dataset: str, texts: list[str], k: int) -> Hits:
        """As the search itself."""
        if k <= DEEPEST and all((dataset, text) in self._hits for text in texts):
            cached = [self._hits[dataset, text] for text in texts]
            return [scores[:k] for scores, _ in cached], [ids[:k] for _, ids in cached]
        scores, doc_ids = self._search(dataset, texts, max(k, DEEPEST))
        for text, row, ids in zip(texts, scores, doc_ids, strict=True):
            self._hits[dataset, text] = row[:DEEPEST].copy(), ids[:DEEPEST]  # a view would keep all hits in memory
        return [row[:k] for row in scores], [ids[:k] for ids in doc_ids]


def fused_search(dense: Search, lexical: Search, fusions: Mapping[str, AnyFusion]) -> Search:
    """Both searches and the fusion of each data set; k hits of what the lists hold together."""

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        fusion = fusions[dataset]
        both = [engine(dataset, texts, fusion.depth) for engine in (dense, lexical)]
        pairs = zip(*(zip(*hits, strict=True) for hits in both), strict=True)
        fused = [fuse(pooled(pair, fusion.depth), fusion, k) for pair in pairs]
        return [scores for scores, _ in fused], [ids for _, ids in fused]

    return search


def choice_on(dev: JudgedSet | None, dense: Search, lexical: Search, carried: AnyFusion | None) -> FusionChoice | None:
    """The fusion that is best on judged dev queries, or what they say of the one that is carried; None without any."""
    if dev is None or (carried and carried not in GRID):
        return None

    def search(rows: slice) -> tuple[Hits, Hits]:
        texts = dev.texts[rows]
        return dense(dev.dataset, texts, DEEPEST), lexical(dev.dataset, texts, DEEPEST)

    return choose_on_dev(dev, search, carried)


def figures(
    system: Fused, dataset: str, choice: FusionChoice | None, texts: Sequence[str], timed: int, seed: int
) -> tuple[AnyFusion, dict[str, Any]]:
    """The fusion, carried, chosen, or else the standard one, and what `fused` of metrics.json says of it.

    `timed` of the texts are timed one by one on one thread, over the index that serves; an endpoint is asked for every
    one, known or not.
    """
    carried = system.carried(dataset)
    fusion = carried or (choice.fusion if choice else STANDARD)
    parts = _parts(system, dataset, fusion, sample(texts, timed, seed))
    medians = np.median(np.column_stack([parts.sum(axis=1), parts]), axis=0) * 1000
    names = ("p50_ms", "encode_ms", "search_ms", "bm25_ms", "fusion_ms")
    return fusion, {
        "fusion": fusion.model_dump(),
        "told": str(fusion),
        "carried": carried is not None,
        "dev": choice.figures() | {"wins": choice.wins} if choice else None,
        **dict(zip(names, medians.tolist(), strict=True)),
        "bytes": folder_bytes(system.dense.release.folder / "lexical" / dataset) if carried else 0,
    }


def _parts(system: Fused, dataset: str, fusion: AnyFusion, texts: Sequence[str]) -> np.ndarray:
    """Seconds to encode, to search the served index, to search BM25, and to fuse: `(texts, 4)`."""
    release, depth = system.dense.release, fusion.depth
    search = system.lexical_search(system.lexical.search)
    seconds = []
    with one_thread(), asking_anew() as waited:
        watch = Stopwatch(waited)
        for text in texts:
            watch.lap()
            vectors = system.dense.encode([text])
            laps = [watch.lap()]
            scores, ids = release.search(dataset, vectors, depth, "ann")
            laps.append(watch.lap())
            lexical = search(dataset, [text], depth)
            laps.append(watch.lap())
            fuse(pooled([(scores[0][: len(ids[0])], ids[0]), (lexical[0][0], lexical[1][0])], depth), fusion, 10)
            seconds.append([*laps, watch.lap()])
    return np.array(seconds)
