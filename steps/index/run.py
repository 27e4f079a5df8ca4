"""Build the indexes of every data set and the manifest of the document side."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.core.corpus import corpus_digest
from steps.core.errors import UserError
from steps.core.files import read_json, sha256_file, staged_folder, write_json
from steps.core.fingerprints import fingerprint
from steps.core.params.index import IndexParams
from steps.core.progress import progress
from steps.core.tables import read_table
from steps.core.tracking import Run
from steps.index.build import flat, ivfpq, ivfpq_factory, recall

DIGESTED = ("doc_id", "title", "topic", "content")


def run(ingest: Path, embed: Path, teach: Path, output: Path, params: IndexParams, run: Run) -> None:
    """Write `<dataset>/{flat,ivfpq}.faiss`, `<dataset>/doc_ids.parquet` and `manifest.json`."""
    corpus = read_table(ingest, "corpus")
    vectors = np.load(embed / "documents.npy", mmap_mode="r")
    if len(vectors) != corpus.num_rows:
        raise UserError(
            f"{embed}/documents.npy: {len(vectors)} vectors for {corpus.num_rows} documents; run `dvc repro embed`"
        )
    teacher = fingerprint(teach / "tower")
    if read_json(embed / "report.json")["teacher"] != asdict(teacher):
        raise UserError(f"{embed}: embedded by another teacher than {teach}/tower; run `dvc repro embed` again")
    queries = _sample_queries(embed, params)
    faiss.omp_set_num_threads(1)  # training sums in a fixed order: equal input, equal bytes

    names = np.array(corpus["dataset"].to_pylist())
    datasets: dict[str, Any] = {}
    with staged_folder(output) as staging:
        for dataset in progress(sorted(set(names)), len(set(names)), "index"):
            rows = np.flatnonzero(names == dataset)
            datasets[dataset] = _index(staging / dataset, corpus.take(rows), vectors[rows], queries, params)
            run.metrics({f"{dataset}.{key}": value for key, value in datasets[dataset]["measured"].items()})
        modules = _modules(teach / "tower")
        manifest = {
            "format": 1,
            "teacher": asdict(teacher),
            "width": int(vectors.shape[1]),
            "metric": "inner_product",
            **modules,
            "faiss": faiss.__version__,
            "datasets": datasets,
        }
        write_json(staging / "manifest.json", manifest)
    run.param("teacher_fingerprint", teacher.id)


def _index(
    folder: Path, corpus: pa.Table, vectors: np.ndarray, queries: np.ndarray, params: IndexParams
) -> dict[str, Any]:
    """Build one data set's indexes in `folder`; returns its part of the manifest."""
    folder.mkdir()
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    factory = ivfpq_factory(len(vectors), vectors.shape[1], params.ivfpq)
    exact = flat(vectors)
    approximate = ivfpq(vectors, factory, params.ivfpq.probes, params.training_vectors, params.seed)
    pq.write_table(corpus.select(["doc_id"]), folder / "doc_ids.parquet")
    files: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for name, index in (("flat", exact), ("ivfpq", approximate)):
        path = folder / f"{name}.faiss"
        faiss.write_index(index, str(path))
        files[name], sizes[name] = sha256_file(path), path.stat().st_size
    return {
        "vectors": len(vectors),
        "corpus_digest": corpus_digest(zip(*(corpus[name].to_pylist() for name in DIGESTED), strict=True)),
        "factory": {"flat": "Flat", "ivfpq": factory},
        "files": files,
        "measured": {
            "ivfpq_recall_at_10": recall(approximate, exact, queries),
            "flat_bytes_per_vector": sizes["flat"] / len(vectors),
            "ivfpq_bytes_per_vector": sizes["ivfpq"] / len(vectors),
        },
    }


def _sample_queries(embed: Path, params: IndexParams) -> np.ndarray:
    """A seeded sample of the alignment texts' vectors, float32 `(n, dim)`: queries to measure recall with."""
    vectors = np.load(embed / "alignment.npy", mmap_mode="r")
    parts = np.array(read_table(embed, "alignment_texts")["part"].to_pylist())
    rows = np.flatnonzero(np.isin(parts, ["train_queries", "pool"]))
    rows = rows if len(rows) else np.arange(len(vectors))
    chosen = np.random.default_rng(params.seed).choice(rows, size=min(len(rows), params.recall_queries), replace=False)
    return np.asarray(vectors[np.sort(chosen)], dtype=np.float32)


def _modules(tower: Path) -> dict[str, Any]:
    """Pooling, normalisation and prompts of a tower, from its saved configuration."""
    kinds = [module["type"].rpartition(".")[2] for module in read_json(tower / "modules.json")]
    pooling = [read_json(path).get("pooling_mode", "mean") for path in sorted(tower.glob("*_Pooling/config.json"))]
    settings = read_json(tower / "config_sentence_transformers.json")
    return {
        "modules": kinds,
        "pooling": pooling,
        "normalised": "Normalize" in kinds,
        "prompts": settings.get("prompts", {}),
    }
