"""Put a student and the index together, export what serves, and load the result as its user will."""

import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from steps.core.errors import UserError
from steps.core.files import folder_bytes, read_json, sha256_file, staged_folder, write_json
from steps.core.params.release import ReleaseParams
from steps.core.query_encoder import load_query_encoder
from steps.core.release import Release, load_release
from steps.core.release_checks import embed_each, index_digests
from steps.core.release_manifest import FORMAT, SHARED, Collection, Manifest, Probe, Serves
from steps.core.towers import encode, load_tower
from steps.core.tracking import Run, flatten
from steps.core.widths import cut
from steps.release.export import export, quantise
from steps.release.index_copy import copy_index, write_titles
from steps.release.parity import Unjudged, check_parity, check_unjudged
from steps.release.probe_texts import probe_texts, sample_texts
from steps.release.quality import DevQueries, Embedded, check_costs, mean_ndcg, measure_costs, read_dev_queries

SERVED_MODEL = Path(__file__).with_name("served_model.py")
SAMPLE = 256  # texts of a data set that is not judged: their mean cosine is known to a ten-thousandth


def run(student: str, distill: Path, index: Path, ingest: Path, output: Path, params: ReleaseParams, run: Run) -> None:
    """Write `query_encoder/`, `serving/`, `index/`, `manifest.json` and `report.json`.

    UserError when the two sides have different teachers, when the exported encoder is not the student, or when export,
    precision and approximate index together lose more of dev nDCG@10 than allowed. Where a data set has no judged dev
    queries, how close the served encoder is to the student decides instead.
    """
    documents = read_json(index / "manifest.json")
    index_digests(documents["datasets"])  # its names become folders of the release
    _check_sides(student, distill, index, documents)
    width, datasets = int(documents["width"]), sorted(documents["datasets"])
    queries = read_dev_queries(ingest, datasets)
    judged = [text for asked in queries for text in asked.texts]
    names = sorted(set(datasets) - {asked.dataset for asked in queries})
    samples = {name: sample_texts(ingest, name, SAMPLE) for name in names}
    probed = probe_texts(ingest, params.probes)
    texts = [*judged, *chain.from_iterable(samples.values()), *probed]
    tower = load_tower(distill / "query_encoder")
    vectors = encode(tower, texts, "query")
    if vectors.shape[1] < width:
        raise UserError(f"{distill}: the student is {vectors.shape[1]} wide, the index {width}; lower index.width")
    vectors = cut(vectors, width)

    with staged_folder(output) as staging:
        shutil.copytree(distill / "query_encoder", staging / "query_encoder")
        copy_index(index, staging / "index")
        write_titles(ingest, staging / "index", datasets)
        form = export(staging / "query_encoder", staging / "serving", params.format, width)
        exported = load_query_encoder(staging / "serving").encode(texts)
        if params.precision == "int8":
            quantise(staging / "serving", form)
        served = embed_each(load_query_encoder(staging / "serving").encode, texts)
        probes = [
            Probe(text=text, vector=_rounded(vector), served=_rounded(answer))
            for text, vector, answer in zip(probed, vectors[-len(probed) :], served[-len(probed) :], strict=True)
        ]
        manifest = _manifest(student, staging, documents, probes, params.probe_tolerance)
        manifest.write(staging / "manifest.json")
        release = load_release(staging)
        embedded = Embedded(vectors, exported, served)
        quality = _quality(release, queries, texts, embedded, params)
        unjudged = _unjudged(samples, len(judged), embedded, params.served_cosine)
        report = {
            "student": student,
            "format": form,
            "precision": params.precision,
            "bytes": {name: folder_bytes(staging / name) for name in ("query_encoder", "serving", "index")},
            **quality,
            "unjudged": {dataset: found.as_dict() for dataset, found in unjudged.items()},
        }
        write_json(staging / "report.json", report)
    for dataset, found in unjudged.items():
        print(
            f"{dataset}: what serving costs in nDCG@10 was not measured: {found.reason}; mean cosine of the served"
            f" encoder to the student {found.served_cosine_mean:.4f} on {found.texts} texts"
        )
    run.param("student", student)
    run.metrics({name: value for name, value in flatten(report).items() if isinstance(value, int | float)})
    run.artifact(output / "manifest.json")
    run.artifact(output / "report.json")
    run.served(output, f"release-{student}", SERVED_MODEL, once=True)


def _check_sides(student: str, distill: Path, index: Path, documents: dict[str, Any]) -> None:
    report = read_json(distill / "report.json")
    if report["teacher"] != documents["teacher"]:
        raise UserError(
            f"{distill}: distilled from another teacher than {index} was made with; run `dvc repro release@{student}`"
        )


def _manifest(student: str, folder: Path, documents: dict[str, Any], probes: list[Probe], tolerance: float) -> Manifest:
    """The manifest of what lies in `folder`."""
    files = _digests(folder / "index")
    return Manifest(
        format=FORMAT,
        student=student,
        encoder=_digests(folder / "query_encoder"),
        serving=_digests(folder / "serving"),
        serves=Serves.model_validate(read_json(folder / "serving" / "serving.json")),
        index_manifest=files.pop("manifest.json"),
        index_files=files,
        datasets={
            name: Collection(vectors=entry["vectors"], corpus_digest=entry["corpus_digest"])
            for name, entry in documents["datasets"].items()
        },
        **{field: documents[field] for field in SHARED},
        probes=probes,
        probe_tolerance=tolerance,
    )


def _digests(folder: Path) -> dict[str, str]:
    """Path below `folder` -> sha256, of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def _quality(
    release: Release, queries: list[DevQueries], texts: list[str], embedded: Embedded, params: ReleaseParams
) -> dict[str, Any]:
    """Parity and cost of what serves, as they go into the report; UserError when a limit is passed."""

    def ndcg(vectors: np.ndarray) -> float:
        total, start = 0.0, 0
        for asked in queries:
            part, start = vectors[start : start + len(asked.ids)], start + len(asked.ids)
            total += mean_ndcg(release, asked, part, "flat") * len(asked.ids)
        return total / start

    parity = check_parity(
        texts,
        embedded.model,
        embedded.exported,
        embedded.served,
        minimum_cosine=params.parity_cosine,
        maximum_loss=params.parity_ndcg_loss,
        ndcg=ndcg if queries else None,
    )
    costs = measure_costs(release, queries, embedded)
    check_costs(costs, params.total_ndcg_loss)
    return {"parity": parity.as_dict(), "dev": {dataset: cost.as_dict() for dataset, cost in costs.items()}}


def _unjudged(samples: dict[str, list[str]], start: int, embedded: Embedded, minimum: float) -> dict[str, Unjudged]:
    """How close what serves is to the student, by data set; the samples' rows of `embedded` begin at `start`."""
    found = {}
    for dataset, texts in samples.items():
        part, start = embedded.rows(start, start + len(texts)), start + len(texts)
        found[dataset] = check_unjudged(dataset, part.model, part.served, minimum_mean=minimum)
    return found


def _rounded(vector: np.ndarray) -> list[float]:
    return [round(float(x), 6) for x in vector]
