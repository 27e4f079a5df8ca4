"""Build the indexes of every data set and the manifest of the document side."""

import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.serving.index_files import FORMAT
from slimtower.serving.tower_files import tower_facts
from steps.core.corpus import corpus_template
from steps.core.progress import progress
from steps.core.tables import read_table
from steps.encoders.towers import announce_texts, encode, load_tower
from steps.index.dataset import index_dataset
from steps.index.gpu import seen
from steps.index.inputs import RECALL_QUERIES, Vectors, read_documents, recall_queries
from steps.index.params import IndexParams
from steps.index.state import state_folder
from steps.tracking.runs import Run, flatten


def run(ingest: Path, embed: Path, teach: Path, output: Path, params: IndexParams, run: Run) -> None:
    """Write a folder of indexes for each data set, and `manifest.json`."""
    queries, corpus = read_table(ingest, "queries"), read_documents(ingest)
    matrix = np.load(embed / "documents.npy", mmap_mode="r")
    count = sum(len(documents.rows) for documents in corpus.values())
    if len(matrix) != count:
        raise UserError(f"{embed}/documents.npy: {len(matrix)} vectors for {count} documents; run `dvc repro embed`")
    teacher = fingerprint(teach / "tower")
    if read_json(embed / "report.json")["teacher"] != asdict(teacher):
        raise UserError(f"{embed}: embedded by another teacher than {teach}/tower; run `dvc repro embed` again")
    if params.dim > matrix.shape[1]:
        width = f"{matrix.shape[1]} dimensions; give 0 (all) or at most {matrix.shape[1]}"
        raise UserError(f"index.dim is {params.dim}, but the teacher's vectors have {width}")
    dim = params.dim or matrix.shape[1]
    print(f"index: {'works on a GPU' if seen() else 'faiss sees no GPU, works on the CPU'}", file=sys.stderr)
    faiss.omp_set_num_threads(1)  # training sums in a fixed order: equal input, equal bytes
    tower = cache(lambda: load_tower(teach / "tower"))

    def encode_queries(texts: list[str]) -> np.ndarray:
        announce_texts(tower(), "query", texts, "index: dev queries")
        return encode(tower(), texts, "query")

    datasets: dict[str, Any] = {}
    with staged_folder(output) as staging:
        for dataset, documents in progress(corpus.items(), len(corpus), "index"):
            recall_set = recall_queries(queries, dataset, embed, encode_queries, limit=RECALL_QUERIES, seed=params.seed)
            entry, update = index_dataset(
                staging / dataset,
                state_folder(teacher.id, dataset, params),
                documents,
                Vectors(matrix, documents.rows, dim),
                recall_set,
                params,
            )
            datasets[dataset] = entry
            run.metrics({f"{dataset}.{key}": value for key, value in _numbers(entry["measured"]).items()})
            run.metrics({f"{dataset}.update.{key}": value for key, value in update.items()})
            _say(dataset, entry)
        manifest = {
            "format": FORMAT,
            "teacher": asdict(teacher),
            "dim": dim,
            "metric": "inner_product",
            **tower_facts(teach / "tower", "document"),
            "document": corpus_template(ingest).template,
            "faiss": faiss.__version__,
            "datasets": datasets,
        }
        write_json(staging / "manifest.json", manifest)
    run.param("teacher_fingerprint", teacher.id)


def _say(dataset: str, entry: dict[str, Any]) -> None:
    """Tell what the approximate index finds, and when that is less than asked for; of one that is exact nothing."""
    measured = entry["measured"]
    if "ann_recall_at_10" not in measured or (index := entry["indexes"]["ann"])["factory"] == "Flat":
        return
    settings = ", ".join(f"{name} {value}" for name, value in index["settings"].items())
    at = f" at {settings}" if settings else ""
    print(f"{dataset}: {index['factory']}{at} finds {measured['ann_recall_at_10']:.2%} of the exact top 10")
    if not measured["target_met"]:
        print(
            f"{dataset}: index.target_recall {measured['target_recall']} is out of its reach; the best setting is kept"
        )


def _numbers(measured: dict[str, Any]) -> dict[str, float]:
    """The figures among what was measured, with a key for each level of the semantic IDs."""
    ids = measured["semantic_ids"]
    levels = {"relative_error": dict(enumerate(ids["relative_error"], 1))}
    figures = flatten(measured | {"semantic_ids": ids | levels})
    return {key: value for key, value in figures.items() if not isinstance(value, str)}
