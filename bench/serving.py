"""python -m bench.serving: what serving costs, after `make demo`. Writes bench/results/serving.json.

Encoders alone (bench.latency), indexes alone and what adding documents costs (bench.vectors), both end to end: text to
ten hits, one query at a time on one thread, and what each student of the demo loses by being served (bench.swap).
IVF-PQ is searched over 16,000 and 1,000,000 vectors, HNSW over 16,000 and 200,000: a graph of a million vectors of
384 dimensions takes ten times as long to build as one of 200,000 and 1.8 GB, and is not what this project serves by
default. Ends with a verdict on each promise; exit code 3 when one is not kept.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from bench import latency, swap, vectors
from bench.machine import recording, write_record
from bench.teacher import index_teacher
from slimtower.common.errors import UserError
from slimtower.serving.index_files import apply_settings
from slimtower.serving.release import load_release
from steps.evaluate.latency import Encode, one_thread, sample
from steps.index.params import Kind

TIMED = 300
HITS = 10
COUNT, GRAPH = vectors.COUNT, 200_000
ENCODERS = ("teacher", "4l.onnx.int8", "2l.onnx.int8", "static.table.int8")
RESULT = Path("bench/results/serving.json")


def check() -> None:
    """UserError, before any work, when something that is measured is not there or was made by other code."""
    needed = [
        swap.METRICS,
        latency.INGEST / "queries.parquet",
        vectors.EMBED / "documents.npy",
        index_teacher() / "tower",
        latency.MODELS / "distill/static/query_encoder",
    ]
    for path in needed:
        if not path.exists():
            raise UserError(f"{path}: not found; run `make demo` first, its models and embeddings are measured here")
    students = {student for row in swap.read_costs().values() for student in row}
    for student in sorted(students):
        if not (swap.RELEASES / student / "manifest.json").is_file():
            raise UserError(f"{swap.RELEASES / student}: not found, but {swap.METRICS} measured it; run `make demo`")
        load_release(swap.RELEASES / student)


def graphs(folder: Path) -> dict[str, dict[str, Any]]:
    """HNSW over the small vectors and over GRAPH, below `folder` beside what bench.vectors left there."""
    queries = vectors.query_vectors(vectors.EMBED)
    (folder / "graph").mkdir()
    vectors.write_vectors(folder / "graph" / "vectors.npy", np.load(vectors.EMBED / "documents.npy"), GRAPH)
    measured = {}
    for part in ("small", "graph"):
        documents = np.load(folder / part / "vectors.npy", mmap_mode="r")
        expected = faiss.knn(queries, documents, HITS, metric=faiss.METRIC_INNER_PRODUCT)[1]
        measured[part] = {"vectors": len(documents), "hnsw": vectors.large(folder / part, "hnsw", expected, queries)}
    return measured


def end_to_end(folder: Path, exports: Path, indexes: list[tuple[str, Kind, dict[str, Any]]]) -> dict[str, Any]:
    """Milliseconds from text to hits, `[vectors][kind][encoder]`; `indexes`: part below `folder`, kind, its figures."""
    texts = sample(latency.query_texts(), TIMED, latency.SEED)
    result: dict[str, Any] = {}
    with one_thread():
        encoders = latency.served_encoders(exports)[0]
        faiss.omp_set_num_threads(1)
        for part, kind, entry in indexes:
            index = faiss.read_index(str(folder / part / f"{kind}.faiss"), faiss.IO_FLAG_MMAP_IFC)
            apply_settings(index, entry[kind]["settings"])
            for encoder in ENCODERS:  # pages of the index are read, and caches filled, before the clock runs
                _seconds(encoders[encoder], index, texts[0])
            times: dict[str, list[float]] = {encoder: [] for encoder in ENCODERS}
            for text in texts:
                for encoder in ENCODERS:
                    times[encoder].append(_seconds(encoders[encoder], index, text))
            figures = {encoder: _figures(seconds) for encoder, seconds in times.items()}
            result.setdefault(f"{entry['vectors']:,}", {})[kind] = figures
    return result


def _seconds(encode: Encode, index: faiss.Index, text: str) -> float:
    started = time.perf_counter()
    index.search(np.ascontiguousarray(encode([text]), dtype=np.float32), HITS)
    return time.perf_counter() - started


def _figures(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


def verdicts(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What is promised of serving: (what, figure, most)."""
    speed, big = result["encoders"]["encoders"], result["vectors"]["indexes"]["large"]["ivfpq"]
    return [
        ("teacher's 1/20 : 2l ONNX int8, p50", 20 / speed["2l.onnx.int8"]["times_faster"], 1.0),
        ("teacher's 1/300 : static, p50", 300 / speed["static.table.int8"]["times_faster"], 1.0),
        ("GiB resident while building the large index", big["peak_rss_gib"], 4.0),
        ("1 - recall@10 of the large index", 1 - big["recall_at_10"], 0.1),
        *(
            (f"share of a rebuild to add 1 %, {part}", share, 0.05)
            for part, share in _shares(result["vectors"]["adding_one_percent"])
        ),
        *(
            (f"nDCG@10 lost by serving {student} on {dataset}{_costliest(cost)}", cost["lost"], 0.01)
            for dataset, row in result["after_the_swap"].items()
            for student, cost in row.items()
        ),
    ]


def _shares(measured: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Every `share` below, with the keys that lead to it."""
    for key, value in measured.items():
        if key == "share":
            yield path.strip(), float(value)
        elif isinstance(value, dict):
            yield from _shares(value, f"{path} {key}")


def _costliest(cost: dict[str, Any]) -> str:
    return f" (export {cost['lost_by_export']:.2%}, index {cost['lost_by_index']:.2%}, HNSW {cost['hnsw']['lost']:.2%})"


def judge(result: dict[str, Any]) -> None:
    """Print each promise with its verdict; UserError when one is not kept."""
    listed = verdicts(result)
    for promise, value, limit in listed:
        print(f"{'OK' if value <= limit else 'FAIL':<5}{promise}: {value:.3g} (at most {limit:g})")
    broken = [promise for promise, value, limit in listed if not value <= limit]
    if broken:
        raise UserError(f"bench.serving: {len(broken)} of {len(listed)} promises not kept: {'; '.join(broken)}")


def main() -> None:
    check()
    seconds: dict[str, float] = {}

    def timed(part: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        print(f"bench.serving: {part} ...", file=sys.stderr)
        started = time.perf_counter()
        measured = work()
        seconds[part] = round(time.perf_counter() - started, 1)
        print(f"bench.serving: {part}: {seconds[part]:.0f} s", file=sys.stderr)
        return measured

    with tempfile.TemporaryDirectory(prefix="bench-serving.") as name, vectors.scratch() as folder:
        exports = Path(name)
        encoders = timed("encoders", lambda: latency.measure(exports, latency.SINGLE, latency.BATCHED))
        measured = timed("vectors", lambda: vectors.measure(folder, COUNT))
        hnsw = timed("hnsw", lambda: graphs(folder))
        served: list[tuple[str, Kind, dict[str, Any]]] = [
            *((part, "ivfpq", entry) for part, entry in measured["indexes"].items()),
            *((part, "hnsw", entry) for part, entry in hnsw.items()),
        ]
        both = timed("end_to_end", lambda: end_to_end(folder, exports, served))
    result = {
        "encoders": encoders,
        "vectors": measured,
        "hnsw": hnsw,
        "end_to_end": both,
        "after_the_swap": timed("after_the_swap", swap.measure),
        "seconds": seconds,
    }
    write_record(RESULT, result)
    print(f"{sum(seconds.values()):.0f} s: {seconds}", file=sys.stderr)
    judge(result)


if __name__ == "__main__":
    recording(main)
