"""Measure one system, and how its result lies on disk. Encoders are timed elsewhere, all together."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from slimtower.common.files import read_json, write_json
from steps.core.judged import JudgedSet
from steps.core.measures import NDCG, trec_order
from steps.evaluate.figures.closeness import Closeness, measure_closeness
from steps.evaluate.figures.indexes import IndexFigures, measure_indexes, timed_indexes
from steps.evaluate.figures.serving import ServingCost, measure_serving
from steps.evaluate.fusing import Fused, FusionFigures, choice_on, figures, fused_search
from steps.evaluate.judging import Texts
from steps.evaluate.latency import Encode
from steps.evaluate.params import HITS, EvaluateParams
from steps.evaluate.scoring import Scored, pooled_auc, score_and_keep
from steps.evaluate.systems import Earlier, Hits, Lexical, Reranked, Search, Student, Teacher, dense_search

RESULT, ARRAYS, RUNS = "result.json", "arrays.npz", "runs"


@dataclass(frozen=True)
class Result:
    """What one system does. By data set, and empty of a system that has no such thing, is all below `bytes`."""

    name: str
    scored: Sequence[Scored]
    bytes: int | None = None
    """Size of the query side on disk; None without an encoder, or where it is behind an API."""
    indexes: Mapping[str, Mapping[str, IndexFigures]] = field(default_factory=dict)
    """The teacher's: figures of each index kind."""
    embeddings: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The teacher's: of the test queries, or of the texts that stand in for them, `(texts, dim)`."""
    serving: Mapping[str, ServingCost] = field(default_factory=dict)
    closeness: Mapping[str, Closeness] = field(default_factory=dict)
    fusions: Mapping[str, FusionFigures] = field(default_factory=dict)
    """Of a dense system that is fused with BM25."""
    best: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Ids of the first hits of each dev query, for `cases.py`; of teacher and students, alone and fused."""

    def of_split(self, split: str) -> list[Scored]:
        """The judged sets of one split."""
        return [item for item in self.scored if item.judged.split == split]

    def ndcg_by_id(self, split: str) -> dict[str, np.ndarray]:
        """The same as `ndcg`, in the order of the queries' ids: a bootstrap then draws the same as the gate's does."""
        return {
            item.judged.dataset: item.values[NDCG][np.argsort(np.array(item.judged.query_ids, dtype=object))]
            for item in self.of_split(split)
        }

    def ndcg(self, split: str) -> dict[str, np.ndarray]:
        """nDCG@10 of the queries of one split, `(queries,)` by data set."""
        return {item.judged.dataset: item.values[NDCG] for item in self.of_split(split)}


def write_result(folder: Path, result: Result) -> None:
    """Write result.json and arrays.npz into a folder."""
    arrays = {
        _key("values", item.judged.dataset, item.judged.split, measure): values
        for item in result.scored
        for measure, values in item.values.items()
    }
    arrays |= {_key("embeddings", dataset): values for dataset, values in result.embeddings.items()}
    for dataset, close in result.closeness.items():
        arrays |= {_key("cosines", dataset): close.cosines, _key("overlaps", dataset): close.overlaps}
    np.savez(folder / ARRAYS, allow_pickle=False, **arrays)
    write_json(
        folder / RESULT,
        {
            "name": result.name,
            "bytes": result.bytes,
            "pooled": {_key(item.judged.dataset, item.judged.split): dict(item.pooled) for item in result.scored},
            "indexes": {
                dataset: {kind: asdict(figures) for kind, figures in row.items()}
                for dataset, row in result.indexes.items()
            },
            "best": dict(result.best),
            "serving": {dataset: asdict(cost) for dataset, cost in result.serving.items()},
            "fusions": {dataset: asdict(figures) for dataset, figures in result.fusions.items()},
        },
    )


def read_result(folder: Path, judged: Iterable[JudgedSet]) -> Result:
    """Read what `write_result` wrote of a system on the same judged sets."""
    payload = read_json(folder / RESULT)
    with np.load(folder / ARRAYS) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def named(*kind: str) -> dict[str, np.ndarray]:
        start = _key(*kind, "")
        return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}

    def values(item: JudgedSet) -> dict[str, np.ndarray]:
        return named("values", item.dataset, item.split)

    cosines, overlaps = named("cosines"), named("overlaps")
    return Result(
        name=payload["name"],
        scored=[Scored(item, values(item), payload["pooled"][_key(item.dataset, item.split)]) for item in judged],
        bytes=payload["bytes"],
        indexes={
            dataset: {kind: IndexFigures(**figures) for kind, figures in row.items()}
            for dataset, row in payload["indexes"].items()
        },
        best=payload["best"],
        embeddings=named("embeddings"),
        serving={dataset: ServingCost(**cost) for dataset, cost in payload["serving"].items()},
        closeness={dataset: Closeness(cosines[dataset], overlaps[dataset]) for dataset in cosines},
        fusions={dataset: FusionFigures(**figures) for dataset, figures in payload["fusions"].items()},
    )


def _key(*names: str) -> str:
    return "/".join(names)


RUN_DEPTH = 100  # hits a query written to reports/runs (TREC files)
MAX_DEV_HITS = 5  # hits of a dev query that are kept, for people to read


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


def measure_lexical(system: Lexical, task: Task, runs: Path, search: Search) -> Result:
    """Quality alone; `runs` is the folder of TREC run files; `search`, the system's own, may keep what it finds."""
    return Result(system.name, [scored for scored, _ in _answers(system.name, search, task, runs)])


def measure_fused(system: Fused, task: Task, runs: Path, encode: Encode, lexical: Search) -> Result:
    """Its quality by what both searches find, dense hits in the index that serves, and what answering a query takes.

    The fusion is that of the release, else the best on dev, else, where nothing is judged there, the standard one.
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
    answers = _answers(system.name, fused_search(dense, lexical, fusions), task, runs, comparable=False)
    return Result(system.name, [scored for scored, _ in answers], fusions=fusion_figures, best=_best_on_dev(answers))


def measure_earlier(system: Earlier, task: Task, runs: Path) -> Result:
    """Quality alone; the vectors of its documents lie beside `runs` meanwhile."""
    vectors = runs.parent / "vectors"
    vectors.mkdir()
    search = system.search_in(sorted({item.dataset for item in task.judged}), vectors)
    result = Result(system.name, [scored for scored, _ in _answers(system.name, search, task, runs)])
    shutil.rmtree(vectors)
    return result


def measure_reranked(system: Reranked, task: Task, runs: Path) -> Result:
    """Quality alone; what it makes of documents lies beside `runs` meanwhile."""
    scratch = runs.parent / "documents"
    answers = _answers(system.name, system.search_in(scratch), task, runs, comparable=False)
    result = Result(system.name, [scored for scored, _ in answers])
    shutil.rmtree(scratch, ignore_errors=True)
    return result


def measure_teacher(system: Teacher, task: Task, runs: Path, encode: Encode) -> Result:
    """Its quality over the exact index, and what every index costs it; `encode` may remember what the system gave."""
    params, release = task.params, system.release
    answers = _answers(system.name, dense_search(encode, release), task, runs)
    exact = [scored for scored, _ in answers if scored.judged.split == "test"]
    timed = params.latency_queries
    texts_by_dataset = {item.dataset: item.texts for item in task.test_sets()}
    texts_by_dataset |= {item.dataset: item.texts for item in task.texts}
    return Result(
        name=system.name,
        scored=[scored for scored, _ in answers],
        bytes=system.bytes,
        indexes=measure_indexes(release, encode, exact, timed, HITS, params.seed)
        | {
            item.dataset: timed_indexes(release, encode, item.dataset, item.texts, timed, params.seed)
            for item in task.texts
        },
        embeddings={dataset: encode(texts) for dataset, texts in texts_by_dataset.items()},
        best=_best_on_dev(answers),
    )


def measure_student(system: Student, task: Task, runs: Path, encode: Encode, teacher: Result) -> Result:
    """Its quality over the exact index, what serving it costs, and how close it comes to the teacher."""
    answers = _answers(system.name, dense_search(encode, system.release), task, runs)
    scored = [scored for scored, _ in answers]
    closeness = {
        item.dataset: measure_closeness(
            system.release, item.dataset, teacher.embeddings[item.dataset], encode(item.texts)
        )
        for item in task.texts
    }
    return Result(
        name=system.name,
        scored=scored,
        bytes=system.bytes,
        serving=measure_serving(system, [item for item in scored if item.judged.split == "test"]),
        closeness=closeness,
        best=_best_on_dev(answers),
    )


def _best_on_dev(answers: Sequence[tuple[Scored, Hits]]) -> dict[str, list[list[str]]]:
    """Ids of the first SHOWN hits of each dev query by data set, in the order in which they were scored."""
    return {
        scored.judged.dataset: [
            [ids[index] for index in trec_order(ids, scores)[:MAX_DEV_HITS]] for scores, ids in zip(*hits, strict=True)
        ]
        for scored, hits in answers
        if scored.judged.split == "dev"
    }


def _answers(
    name: str, search: Search, task: Task, runs: Path, *, comparable: bool = True
) -> list[tuple[Scored, Hits]]:
    """Score every judged set, and write a run file of each that is test.

    `comparable`: scores mean the same whatever the query, so that pairs of several queries can be ranked by them.
    """
    runs.mkdir()
    params = task.params
    answers = []
    for item in task.judged:
        file = runs / f"{item.dataset}.{name}.run" if item.split == "test" else None
        scored, hits = score_and_keep(name, search, item, HITS, params.by_query, file, RUN_DEPTH)
        pooled = pooled_auc(params.measures, search, item, HITS) if comparable else {}
        answers.append((replace(scored, pooled=pooled), hits))
    return answers
