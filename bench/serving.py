"""python -m bench.serving: what serving costs, after `make demo`. Writes bench/results/serving.json.

Encoders alone (bench.latency), indexes alone and what adding documents costs (bench.vectors), and both end to end: text
to ten hits, one query at a time on one thread, over 16,000 and 1,000,000 vectors. `after_the_swap` repeats what the
demo's evaluation found: test nDCG@10 of each student as trained, exported, and over the served index.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from bench import latency, vectors
from bench.machine import machine
from steps.core.errors import guarded
from steps.core.files import read_json, write_json
from steps.core.index_files import apply_settings
from steps.core.tracking import git_commit
from steps.evaluate.latency import Encode, one_thread, sample

TIMED = 300
HITS = 10
ENCODERS = ("teacher", "2l.onnx.int8", "static.table.int8")
RESULT = Path("bench/results/serving.json")
METRICS = Path("reports/metrics.json")


def end_to_end(folder: Path, indexes: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds from text to hits by number of vectors and encoder; the encoders take turns on each query."""
    texts = sample(latency.query_texts(), TIMED, latency.SEED)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-serving.") as name, one_thread():
        encoders = latency.served_encoders(Path(name))[0]
        faiss.omp_set_num_threads(1)
        for part, entry in indexes.items():
            index = faiss.read_index(str(folder / part / "ivfpq.faiss"), faiss.IO_FLAG_MMAP_IFC)
            apply_settings(index, entry["ivfpq"]["settings"])
            times: dict[str, list[float]] = {encoder: [] for encoder in ENCODERS}
            for text in texts:
                for encoder in ENCODERS:
                    times[encoder].append(_seconds(encoders[encoder], index, text))
            result[f"{entry['vectors']:,}"] = {encoder: _figures(each) for encoder, each in times.items()}
    return result


def _seconds(encode: Encode, index: faiss.Index, text: str) -> float:
    started = time.perf_counter()
    index.search(np.ascontiguousarray(encode([text]), dtype=np.float32), HITS)
    return time.perf_counter() - started


def _figures(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


def verdicts(found: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What is promised of serving: (what, figure, most)."""
    speed, big = found["encoders"]["encoders"], found["vectors"]["indexes"]["large"]["ivfpq"]
    return [
        ("teacher's 1/20 : 2l ONNX int8, p50", 20 / speed["2l.onnx.int8"]["times_faster"], 1.0),
        ("teacher's 1/300 : static, p50", 300 / speed["static.table.int8"]["times_faster"], 1.0),
        ("GiB resident while building the large index", big["peak_rss_gib"], 4.0),
        ("1 - recall@10 of the large index", 1 - big["recall_at_10"], 0.1),
        ("share of a rebuild to add 1 %", max(e["index"]["share"] for e in _added(found)), 0.05),
        ("the same with files read and written", max(e["with_files"]["share"] for e in _added(found)), 0.05),
        *(
            (f"nDCG@10 lost by serving {student} on {dataset}", cost["lost"], 0.01)
            for dataset, row in found["after_the_swap"].items()
            for student, cost in row.items()
        ),
    ]


def _added(found: dict[str, Any]) -> list[dict[str, Any]]:
    return list(found["vectors"]["adding_one_percent"].values())


def main() -> None:
    """Measure, write, and print each promise with its verdict."""
    encoders = latency.measure()
    with vectors.scratch() as folder:
        measured = vectors.measure(folder)
        both = end_to_end(folder, measured["indexes"])
    found = {
        "machine": machine(),
        "git_commit": git_commit(),
        "encoders": encoders,
        "vectors": measured,
        "end_to_end": both,
        "after_the_swap": read_json(METRICS)["serving"] if METRICS.is_file() else {},
    }
    write_json(RESULT, found)
    print(f"wrote {RESULT}", file=sys.stderr)
    for what, value, most in verdicts(found):
        print(f"{'OK' if value <= most else 'FAIL':<5}{what}: {value:.3g} (at most {most:g})")


if __name__ == "__main__":
    guarded(main)
