"""python -m bench.given_vectors RUN: the student of a finished run once more, from the stored document vectors alone.

RUN is the folder of a run in which `distill@static` is done, as after `make run RECIPE=recipes/scifact.yaml
DATA=<folder> STAGES=distill@static`. Its document vectors are written as .npy with their ids, shuffled, as an index of
one's own would give them. A copy of the run reads them (`ingest.document_vectors`) with caches of its own, below
.cache/given_vectors, and goes as far as `distill@static`. Counted is which documents were embedded there besides the
sample that is compared; the student's weights must be those of RUN. Writes bench/results/given_vectors.json.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.machine import recording, write_record
from pipeline.plain_copy import plain_copy
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.common.settings import read_mapping
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.tables import read_table
from steps.core.vector_store import text_key
from steps.tracking.run_ids import git_commit

FOLDER, RESULT = Path(".cache/given_vectors"), Path("bench/results/given_vectors.json")
STUDENT, SEED = "static", 7


def write_stored(run: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Write each data set's vectors and ids in an order of their own; returns what `ingest.document_vectors` says."""
    vectors = np.load(run / "data/embed/documents.npy", mmap_mode="r")
    names = np.array(list(corpus_columns(run / "data/ingest", ["dataset", "doc_id"])), dtype=object)
    random, described = np.random.default_rng(SEED), {}
    for dataset in sorted(set(names[:, 0])):
        rows = random.permutation(np.flatnonzero(names[:, 0] == dataset))
        paths = folder / f"{dataset}.npy", folder / f"{dataset}.txt"
        np.save(paths[0], vectors[rows])
        ids = (doc_id.removeprefix(f"{dataset}/") for doc_id in names[rows, 1])
        paths[1].write_text("".join(f"{doc_id}\n" for doc_id in ids), encoding="utf-8")
        described[dataset] = {"kind": "files", "path": str(paths[0].resolve()), "ids": str(paths[1].resolve())}
    return described


def run_pipeline(project: Path, cache: Path) -> None:
    """Bring the copy up to the student; UserError where that fails."""
    dropped = ("SLIMTOWER_", "MLFLOW_", "DVC_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    config = f"[core]\n    no_scm = true\n[cache]\n    dir = '{cache / 'dvc'}'\n"
    (project / ".dvc/config.local").write_text(config, encoding="utf-8")
    environment = variables | {"SLIMTOWER_CACHE": str(cache), "SLIMTOWER_GIT_COMMIT": git_commit()}
    command = [sys.executable, "-m", "pipeline", f"distill@{STUDENT}"]
    if code := subprocess.run(command, cwd=project, env=environment).returncode:
        raise UserError(f"{project}: its run ended with exit code {code}; the reason stands above")


def embedded(project: Path, cache: Path) -> int:
    """How many documents have a vector in the caches; those that are alignment texts as well do not count."""
    text_keys = {text_key(text) for text in read_table(project / "data/embed", "alignment_texts")["text"].to_pylist()}
    documents = {text_key(text) for text in CorpusTexts(project / "data/ingest")}
    return len((documents - text_keys) & set(_cached_keys(cache)))


def _cached_keys(cache: Path) -> Iterator[bytes]:
    for path in cache.glob("vectors/*/shard-*/keys.npy"):
        yield from (key.tobytes() for key in np.load(path))


def weights(run: Path) -> dict[str, str]:
    """Digest by path of the student's weights; UserError where there are none."""
    folder = run / "models/distill" / STUDENT / "query_encoder"
    digests = {str(path.relative_to(folder)): sha256_file(path) for path in sorted(folder.rglob("*.safetensors"))}
    if not digests:
        raise UserError(f"{folder}: no student here; run its recipe with STAGES=distill@{STUDENT} first")
    return digests


def measure(run: Path, folder: Path, bring_up: Callable[[Path, Path], None] = run_pipeline) -> dict[str, Any]:
    """What became of the run without its documents being read; `folder` is emptied first."""
    expected, project, cache = weights(run), folder / "project", (folder / "cache").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plain_copy(run, project)
    (project / "dvc.lock").unlink(missing_ok=True)
    params = read_mapping(run / "params.yaml")
    params["ingest"] |= {"document_vectors": write_stored(run, folder)}
    (project / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False, allow_unicode=True), encoding="utf-8")
    began = time.perf_counter()
    bring_up(project, cache)
    report, digests = read_json(project / "data/embed/report.json"), weights(project)
    return {
        "documents": report["documents"],
        "compared": report["given_documents"],
        "embedded_besides": embedded(project, cache),
        "alignment_texts": report["alignment_texts"],
        "same_student": digests == expected,
        "student": {"of_the_run": expected, "of_stored_vectors": digests},
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    if len(sys.argv) != 2:
        raise UserError("usage: python -m bench.given_vectors RUN, such as runs/scifact")
    result = measure(Path(sys.argv[1]), FOLDER)
    print(
        f"{result['documents']:,} documents: {result['compared']['documents']} compared, {result['embedded_besides']:,}"
        f" embedded besides; the student is {'the same' if result['same_student'] else 'ANOTHER ONE'}"
    )
    write_record(RESULT, {"run": sys.argv[1], **result})


if __name__ == "__main__":
    recording(main)
