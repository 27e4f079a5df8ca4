"""What each student of the demo loses between its training and the index that serves it, and which part costs what."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from bench.teacher import index_teacher
from pipeline.params import load_params
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.serving.dims import truncate
from slimtower.serving.release import Release, load_release
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.tables import read_table
from steps.encoders.towers import encode, load_tower
from steps.evaluate.scoring import score
from steps.evaluate.systems import Hits
from steps.index.inputs import RECALL_QUERIES, Vectors, recall_queries
from steps.index.params import IndexParams, of_kind
from steps.index.tuning import K, Target, Tuned, exact_top, tune

INGEST, EMBED = Path("data/ingest"), Path("data/embed")
RELEASES, METRICS = Path("models/release"), Path("reports/metrics.json")
MEASURE = "nDCG@10"


def read_costs() -> dict[str, dict[str, dict[str, float]]]:
    """What the last evaluation found, `[data set][student]`; UserError when it did not look at serving."""
    costs: dict[str, dict[str, dict[str, float]]] = read_json(METRICS).get("serving", {})
    if not costs:
        raise UserError(f"{METRICS}: holds no figures of serving; run `make demo` (or `dvc repro evaluate`) first")
    return costs


def measure() -> dict[str, dict[str, Any]]:
    """`[data set][student]`: test nDCG@10 as trained, exported, and over the index that serves; and over HNSW.

    Shares are of `model`, the student as trained over the exact index: `lost_by_export` (ONNX or table, and int8) and
    `lost_by_index` add up to `lost`. HNSW is built over the same vectors and tuned to the same recall target.
    """
    costs, params = read_costs(), load_params().index
    result: dict[str, dict[str, Any]] = {}
    for judged in read_judged_sets(INGEST, ["test"]):
        row = costs[judged.dataset]
        releases = {student: load_release(RELEASES / student) for student in sorted(row)}
        graph, tuned = _graph(next(iter(releases.values())), judged.dataset, params)
        result[judged.dataset] = {
            student: _parts(row[student]) | {"hnsw": _over(graph, tuned, release, judged, row[student]["model"])}
            for student, release in releases.items()
        }
    return result


def _parts(cost: dict[str, float]) -> dict[str, Any]:
    model, exact, served = (cost[key] for key in ("model", "exact", "served"))
    shares = {"lost_by_export": model - exact, "lost_by_index": exact - served, "lost": model - served}
    return {key: cost[key] for key in ("model", "exact", "served")} | {
        key: loss / model if model else 0.0 for key, loss in shares.items()
    }


def _graph(release: Release, dataset: str, params: IndexParams) -> tuple[faiss.Index, Tuned]:
    """HNSW over a data set's documents, at the setting that finds what the exact index finds for dev queries."""
    exact = release.index(dataset, "flat")
    vectors = exact.reconstruct_n(0, exact.ntotal)
    text = of_kind("hnsw", len(vectors), vectors.shape[1])
    graph = faiss.index_factory(vectors.shape[1], text, faiss.METRIC_INNER_PRODUCT)
    graph.add(vectors)
    teacher = load_tower(index_teacher() / "tower")
    recall_set = recall_queries(
        read_table(INGEST, "queries"),
        dataset,
        EMBED,
        lambda texts: encode(teacher, texts, "query"),
        RECALL_QUERIES,
        params.seed,
    )
    queries = np.ascontiguousarray(truncate(recall_set.vectors, release.manifest.dim))
    every = Vectors(vectors, np.arange(len(vectors)), vectors.shape[1])
    target = Target.of(queries, every, exact_top(every, queries, min(K, len(every))))
    return graph, tune(graph, target, params.target_recall)


def _over(graph: faiss.Index, tuned: Tuned, release: Release, judged: JudgedSet, model: float) -> dict[str, Any]:
    """The served encoder over the graph."""
    ids = release.documents(judged.dataset).ids

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        vectors = np.ascontiguousarray(release.encode(texts), dtype=np.float32)
        scores, rows = graph.search(vectors, min(k, graph.ntotal))
        doc_ids = [[ids[row] for row in line if row >= 0] for line in rows.tolist()]
        return [row[: len(docs)] for row, docs in zip(scores, doc_ids, strict=True)], doc_ids

    served = float(score(f"{release.folder.name}, HNSW", search, judged, K).values[MEASURE].mean())
    return {
        "served": served,
        "lost": 1 - served / model if model else 0.0,
        "settings": tuned.settings,
        "recall_at_10": round(tuned.recall, 4),
    }
