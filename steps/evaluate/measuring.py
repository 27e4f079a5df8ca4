"""Measure one system, and how its result lies on disk. Encoders are timed elsewhere, all together."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.files import read_json, write_json
from steps.core.judged import JudgedSet
from steps.core.measures import NDCG, trec_order
from steps.evaluate.figures.closeness import measure_closeness
from steps.evaluate.figures.indexes import measure_indexes
from steps.evaluate.figures.serving import measure_serving
from steps.evaluate.fusing import Fused, choice_on, figures, fused_search
from steps.evaluate.judging import Texts
from steps.evaluate.latency import Encode
from steps.evaluate.params import HITS, EvaluateParams
from steps.evaluate.scoring import Scored, pooled_auc, score_and_keep
from steps.evaluate.systems import Hits, Other, Search, Student, Teacher, dense_search

RESULT, ARRAYS, RUNS = "result.json", "arrays.npz", "runs"
RUN_DEPTH = 100  # hits a query written to reports/runs (TREC files)
MAX_DEV_HITS = 5  # hits of a dev query that are kept, for people to read


@dataclass(frozen=True)
class Result:
    """What one system does. By data set, and empty of a system that has no such thing, is all below `bytes`."""

    name: str
    scored: Sequence[Scored]
    bytes: int | None = None
    """Size of the query side on disk; None without an encoder, or where it is behind an API."""
    indexes: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """The teacher's: `[data set][kind]` as metrics.json has it."""
    embeddings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The teacher's: of the test queries, or of the texts that stand in for them, `(texts, dim)`."""
    serving: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    closeness: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """`cosine` and `overlap` with the teacher by text, `(texts,)` each."""
    fusions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of a dense system that is fused with BM25: see `fusing.figures`."""
    best: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Ids of the first hits of each dev query, for cases to read; of teacher and students, alone and fused."""

    def of_split(self, split: str) -> list[Scored]:
        """The judged sets of one split."""
        return [item for item in self.scored if item.judged.split == split]

    def ndcg(self, split: str) -> dict[str, np.ndarray]:
        """nDCG@10 of the queries of one split, `(queries,)` by data set, in the order of their ids."""
        return {item.judged.dataset: item.values[NDCG] for item in self.of_split(split)}


def write_result(folder: Path, result: Result) -> None:
    """Write result.json and arrays.npz into a folder."""
    arrays = {
        f"values/{at}/{name}": array for at, item in enumerate(result.scored) for name, array in item.values.items()
    }
    arrays |= {f"embeddings/{dataset}": array for dataset, array in result.embeddings.items()}
    arrays |= {
        f"closeness/{name}/{dataset}": array for dataset, row in result.closeness.items() for name, array in row.items()
    }
    np.savez(folder / ARRAYS, allow_pickle=False, **arrays)
    plain = {name: getattr(result, name) for name in ("name", "bytes", "indexes", "serving", "fusions", "best")}
    write_json(folder / RESULT, plain | {"pooled": [item.pooled for item in result.scored]})


def read_result(folder: Path, judged: Iterable[JudgedSet]) -> Result:
    """Read what `write_result` wrote of a system on the same judged sets."""
    plain = read_json(folder / RESULT)
    pooled = plain.pop("pooled")
    with np.load(folder / ARRAYS) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def below(start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}

    scored = [Scored(item, below(f"values/{at}/"), pooled[at]) for at, item in enumerate(judged)]
    cosines, overlaps = below("closeness/cosine/"), below("closeness/overlap/")
    closeness = {dataset: {"cosine": cosines[dataset], "overlap": overlaps[dataset]} for dataset in cosines}
    return Result(scored=scored, embeddings=below("embeddings/"), closeness=closeness, **plain)


@dataclass(frozen=True)
class Task:
    """What every system is measured on: judged sets, texts of data sets whose test queries nobody judged, and how.

    `user_slices`: a user's slices, query id -> names.
    """

    judged: Sequence[JudgedSet]
    texts: Sequence[Texts]
    params: EvaluateParams
    user_slices: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def test_sets(self) -> list[JudgedSet]:
        """The judged sets that are reported and promoted on."""
        return [item for item in self.judged if item.split == "test"]

    def timed_texts(self) -> list[str]:
        """What encoders are timed on: test queries, or what stands in for them where nothing is judged."""
        return [text for item in self.test_sets() or self.texts for text in item.texts]


def measure_quality(name: str, search: Search, task: Task, runs: Path, *, comparable: bool = True) -> Result:
    """Quality and the hits of dev queries; `runs` is the folder of TREC run files, one of each test set.

    `comparable`: scores mean the same whatever the query, so that pairs of several queries can be ranked by them.
    """
    runs.mkdir()
    params, all_scored, best = task.params, [], {}
    for item in task.judged:
        file = runs / f"{item.dataset}.{name}.run" if item.split == "test" else None
        scored, hits = score_and_keep(name, search, item, HITS, params.by_query, file, RUN_DEPTH)
        all_scored.append(replace(scored, pooled=pooled_auc(params.measures, search, item, HITS) if comparable else {}))
        if item.split == "dev":
            best[item.dataset] = _first_ids(hits)
    return Result(name, all_scored, best=best)


def _first_ids(hits: Hits) -> list[list[str]]:
    return [[ids[at] for at in trec_order(ids, scores)[:MAX_DEV_HITS]] for scores, ids in zip(*hits, strict=True)]


def measure_other(system: Other, task: Task, runs: Path) -> Result:
    """Quality alone; what the system makes of documents lies beside `runs` meanwhile."""
    scratch = runs.parent / "scratch"
    scratch.mkdir()
    search = system.search_in(sorted({item.dataset for item in task.judged}), scratch)
    result = measure_quality(system.name, search, task, runs, comparable=system.comparable)
    shutil.rmtree(scratch)
    return result


def measure_fused(system: Fused, task: Task, runs: Path, encode: Encode, lexical: Search) -> Result:
    """Its quality by both searches, dense hits of the index that serves, and what answering a query takes.

    The fusion is that of the release, else the best on dev, else the standard one.
    """
    dense, lexical = dense_search(encode, system.dense.release, "ann"), system.lexical_search(lexical)
    sets: dict[str, dict[str, JudgedSet]] = {}
    for item in task.judged:
        sets.setdefault(item.dataset, {})[item.split] = item
    fusions, fusion_figures = {}, {}
    for dataset, splits in sets.items():
        choice = choice_on(splits.get("dev"), dense, lexical, system.carried(dataset))
        texts = (splits.get("test") or splits["dev"]).texts
        timed, seed = task.params.latency_queries, task.params.seed
        fusions[dataset], fusion_figures[dataset] = figures(system, dataset, choice, texts, timed, seed)
    search = fused_search(dense, lexical, fusions)
    return replace(measure_quality(system.name, search, task, runs, comparable=False), fusions=fusion_figures)


def measure_teacher(system: Teacher, task: Task, runs: Path, encode: Encode) -> Result:
    """Its quality over the exact index, and what every index costs it; `encode` may remember what the system gave."""
    params, release = task.params, system.release
    result = measure_quality(system.name, dense_search(encode, release), task, runs)
    exact = {scored.judged.dataset: scored for scored in result.of_split("test")}
    texts = {item.dataset: item.texts for item in task.test_sets()}
    texts |= {item.dataset: item.texts for item in task.texts}
    return replace(
        result,
        bytes=system.bytes,
        indexes={
            dataset: measure_indexes(
                release, encode, dataset, texts[dataset], params.latency_queries, params.seed, exact.get(dataset)
            )
            for dataset in texts
        },
        embeddings={dataset: encode(dataset_texts) for dataset, dataset_texts in texts.items()},
    )


def measure_student(system: Student, task: Task, runs: Path, encode: Encode, teacher: Result) -> Result:
    """Its quality over the exact index, what serving it costs, and how close it comes to the teacher."""
    result, release = measure_quality(system.name, dense_search(encode, system.release), task, runs), system.release
    return replace(
        result,
        bytes=release.model_bytes,
        serving=measure_serving(system, result.of_split("test")),
        closeness={
            item.dataset: measure_closeness(release, item.dataset, teacher.embeddings[item.dataset], encode(item.texts))
            for item in task.texts
        },
    )
