"""Put a student and the index together, write the manifest, and load the result as its user will."""

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np

from steps.core.errors import UserError
from steps.core.files import folder_bytes, read_json, sha256_file, staged_folder
from steps.core.fingerprints import fingerprint
from steps.core.params.release import ReleaseParams
from steps.core.release import FORMAT, Manifest, Probe, load_release
from steps.core.tables import read_table
from steps.core.texts import sentences
from steps.core.towers import encode, load_tower
from steps.core.tracking import Run


def run(student: str, distill: Path, index: Path, ingest: Path, output: Path, params: ReleaseParams, run: Run) -> None:
    """Write `query_encoder/`, `index/` and `manifest.json`; UserError when the two sides have different teachers."""
    report, documents = read_json(distill / "report.json"), read_json(index / "manifest.json")
    if report["teacher"] != documents["teacher"]:
        raise UserError(
            f"{distill}: distilled from another teacher than {index} was made with; run `dvc repro release@{student}`"
        )
    tower = load_tower(distill / "query_encoder")
    texts = _probe_texts(ingest, params.probes)
    vectors = encode(tower, texts, "query")
    if vectors.shape[1] != documents["width"]:
        raise UserError(f"{distill}: the student is {vectors.shape[1]} wide, the index {documents['width']}")
    with staged_folder(output) as staging:
        shutil.copytree(distill / "query_encoder", staging / "query_encoder")
        shutil.copytree(index, staging / "index")
        files = sorted(path for path in (staging / "index").rglob("*") if path.is_file())
        Manifest(
            format=FORMAT,
            student=student,
            encoder=asdict(fingerprint(staging / "query_encoder")),
            teacher=report["teacher"],
            index_files={path.relative_to(staging / "index").as_posix(): sha256_file(path) for path in files},
            width=documents["width"],
            metric=documents["metric"],
            datasets={name: entry["vectors"] for name, entry in documents["datasets"].items()},
            probes=[
                Probe(text, [round(float(x), 6) for x in vector])
                for text, vector in zip(texts, np.asarray(vectors), strict=True)
            ],
            probe_tolerance=params.probe_tolerance,
        ).write(staging / "manifest.json")
        load_release(staging)
        run.metrics({"encoder_bytes": folder_bytes(staging / "query_encoder"), "release_bytes": folder_bytes(staging)})
    run.param("student", student)
    run.artifact(output / "manifest.json")


def _probe_texts(ingest: Path, count: int) -> list[str]:
    """The first training queries by id; titles, then first sentences of documents where there are too few."""
    queries = [row for row in read_table(ingest, "queries").to_pylist() if row["split"] == "train"]
    texts = [row["text"] for row in sorted(queries, key=lambda row: row["query_id"])]
    if len(texts) < count:
        corpus = read_table(ingest, "corpus").to_pylist()
        texts += [row["title"] for row in corpus if row["title"]]
        texts += [found[0] for row in corpus if (found := sentences(row["content"]))]
    return texts[:count]
