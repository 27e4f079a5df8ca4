"""python -m bench.vectors: a large index in bounded memory, and what adding 1 % costs; `bench.serving` runs it.

The vectors are seeded perturbations of the demo's document embeddings: a document drawn at random plus Gaussian noise
of length NOISE, renormalised. So siblings have a cosine of about 1 / (1 + NOISE ** 2), the median cosine of a document
to its nearest neighbour. Queries are embeddings of real queries. Each build runs in a process of its own, whose peak
memory is told.
"""

import cProfile
import json
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from pipeline.params import load_params
from slimtower.common.errors import UserError, guarded
from steps.core.tables import read_table, table_from_columns, write_table
from steps.index.build import fill, trained
from steps.index.dataset import index_dataset
from steps.index.inputs import CHUNK, RecallQueries, Vectors, read_documents
from steps.index.params import Kind, of_kind
from steps.index.tuning import K, Target, exact_top, tune

COUNT, SMALL = 1_000_000, 16_000
UPDATED = 200_000
ADDED_SHARE = 0.01
NOISE = 0.55
QUERIES = 300
TRAINED_ON = 100_000
TIMED = 200
TARGET = 0.95
SEED = 7
EMBED = Path("data/embed")


def write_vectors(path: Path, documents: np.ndarray, count: int) -> None:
    """Write `(count, dim)` float32 perturbed documents as `.npy`, a chunk in memory at a time."""
    generator = np.random.default_rng(SEED)
    dim = documents.shape[1]
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, dim))
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        chunk = documents[generator.integers(0, len(documents), size)].astype(np.float32)
        chunk += NOISE / np.sqrt(dim) * generator.standard_normal((size, dim), dtype=np.float32)
        out[start : start + size] = chunk / np.linalg.norm(chunk, axis=1, keepdims=True)
    out.flush()


def query_vectors(embed: Path) -> np.ndarray:
    """A seeded sample of the embeddings of training queries, float32 `(QUERIES, dim)`."""
    parts = np.array(read_table(embed, "alignment_texts")["part"].to_pylist())
    rows = np.flatnonzero(parts == "train_queries")
    chosen = np.random.default_rng(SEED).choice(rows, size=min(QUERIES, len(rows)), replace=False)
    return np.load(embed / "alignment.npy", mmap_mode="r")[np.sort(chosen)].astype(np.float32)


def build_one(folder: Path, kind: Kind) -> dict[str, Any]:
    """Train and fill the kind's index over `folder/vectors.npy` in this process, write it; seconds and peak memory."""
    faiss.omp_set_num_threads(1)
    vectors = _vectors(folder)
    text = of_kind(kind, len(vectors), vectors.dim)
    started = time.perf_counter()
    template = trained(text, vectors, TRAINED_ON, SEED)
    ready = time.perf_counter()
    index = fill(template, vectors).index()
    filled = time.perf_counter()
    faiss.write_index(index, str(folder / f"{kind}.faiss"))
    return {
        "factory": text,
        "train_seconds": round(ready - started, 1),
        "fill_seconds": round(filled - ready, 1),
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def large(folder: Path, kind: Kind, target: Target) -> dict[str, Any]:
    """Build in a process of its own, then recall@10 and the time of one search on one thread."""
    command = [sys.executable, "-m", "bench.vectors", "--build", str(folder), kind]
    figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    path = folder / f"{kind}.faiss"
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    tuned = tune(index, target, TARGET)
    times = []
    for query in target.queries[:TIMED]:
        started = time.perf_counter()
        index.search(query[None], K)
        times.append(time.perf_counter() - started)
    return figures | {
        "bytes_per_vector": round(path.stat().st_size / index.ntotal, 1),
        "settings": tuned.settings,
        "recall_at_10": round(tuned.recall, 4),
        "search_p50_ms": round(float(np.median(times)) * 1000, 3),
        "search_p99_ms": round(float(np.quantile(times, 0.99)) * 1000, 3),
    }


def update(folder: Path, kind: Kind, queries: np.ndarray) -> dict[str, Any]:
    """Seconds to index a data set at the stage's defaults, and then with 1 % more documents (best of three).

    Both are all that the stage does for a data set, from reading its documents to keeping its state. `seconds_of`:
    where the update's time went, in one more run under a profiler.
    """
    faiss.omp_set_num_threads(1)
    params = load_params().index.model_copy(update={"kind": kind})
    vectors = _vectors(folder)
    count = round(len(vectors) / (1 + ADDED_SHARE))
    for name, size in (("before", count), ("after", len(vectors))):
        write_texts(folder / name, size)

    def index(name: str, size: int, state: Path) -> float:
        shutil.rmtree(folder / "index", ignore_errors=True)
        started = time.perf_counter()
        documents = read_documents(folder / name)["bench"]
        recall_set = RecallQueries(queries, "alignment")
        _, changes = index_dataset(folder / "index", state, documents, vectors.slice(0, size), recall_set, params)
        if changes["added"] != (count if name == "before" else len(vectors) - count):
            raise SystemExit("the state does not lack exactly what was added")
        return time.perf_counter() - started

    built = index("before", count, folder / kind / "before")
    times = []
    profile = cProfile.Profile()
    for run in range(4):
        shutil.copytree(folder / kind / "before", folder / kind / "after", dirs_exist_ok=True)
        if run < 3:
            times.append(index("after", len(vectors), folder / kind / "after"))
        else:
            profile.runcall(index, "after", len(vectors), folder / kind / "after")
    return {
        "vectors": count,
        "added": len(vectors) - count,
        "update_seconds": round(min(times), 2),
        "rebuild_seconds": round(built, 2),
        "share": round(min(times) / built, 4),
        "seconds_of": _seconds_of(profile),
    }


def write_texts(folder: Path, count: int) -> None:
    """Write a corpus of `count` documents of some 30 words."""
    generator = np.random.default_rng(SEED)
    words = np.array([f"word{number}" for number in range(20_000)])

    def table(start: int) -> pa.Table:
        size = min(CHUNK, count - start)
        texts = [" ".join(line) for line in words[generator.integers(0, len(words), (size, 30))]]
        ids = [f"bench/{start + number}" for number in range(size)]
        columns = (ids, ["bench"] * size, [f"title {name}" for name in ids], ["topic"] * size, texts)
        return table_from_columns("corpus", columns)

    write_table(folder, "corpus", *map(table, range(0, count, CHUNK)))


def _seconds_of(profile: cProfile.Profile) -> dict[str, float]:
    """Seconds in the functions that an update consists of, the longest first."""
    parts = {
        "read_documents", "digests", "load", "flat", "updated_top", "index", "updated", "tuned_again", "updated_ids",
        "distinct_share", "save", "sha256_file", "write_index",
    }  # fmt: skip
    seconds_by_part: dict[str, float] = {}
    for (path, _, name), (_, _, _, seconds, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if name in parts and "bench" not in Path(path).parts:
            seconds_by_part[name] = round(seconds_by_part.get(name, 0.0) + seconds, 3)
    return dict(sorted(seconds_by_part.items(), key=lambda item: -item[1]))


def _vectors(folder: Path) -> Vectors:
    matrix = np.load(folder / "vectors.npy", mmap_mode="r")
    return Vectors(matrix, np.arange(len(matrix)), matrix.shape[1])


def measure(folder: Path, count: int = COUNT, embed: Path = EMBED) -> dict[str, Any]:
    """An index of 16,000 vectors, a large one, and the update of one between; their files stay below `folder`."""
    if not (embed / "documents.npy").is_file():
        raise UserError(f"{embed}/documents.npy: not found; run `make demo` first, its embeddings are perturbed here")
    documents, queries = np.load(embed / "documents.npy", mmap_mode="r"), query_vectors(embed)
    indexes = {}
    for part, size in (("small", SMALL), ("large", count), ("updated", round(UPDATED * (1 + ADDED_SHARE)))):
        (folder / part).mkdir()
        write_vectors(folder / part / "vectors.npy", documents, size)
        if part != "updated":
            vectors = _vectors(folder / part)
            target = Target.of(queries, vectors, exact_top(vectors, queries, K))
            indexes[part] = {"vectors": size, "ivfpq": large(folder / part, "ivfpq", target)}
    kinds: list[Kind] = ["ivfflat", "ivfpq"]
    return {
        "dim": documents.shape[1],
        "noise": NOISE,
        "target_recall": TARGET,
        "seed": SEED,
        "queries": len(queries),
        "indexes": indexes,
        "adding_one_percent": {kind: update(folder / "updated", kind, queries) for kind in kinds},
    }


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder below .cache for a few GB, removed at the end."""
    Path(".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-vectors.", dir=".cache") as name:
        yield Path(name)


def main() -> None:
    """One build in this process: `--build FOLDER KIND`."""
    kind: Any = sys.argv[3]
    print(json.dumps(build_one(Path(sys.argv[2]), kind)))


if __name__ == "__main__":
    guarded(main)
