"""Put a student and the index together, export what serves, and load the result as its user will."""

import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, read_json, sha256_file, staged_folder, write_json
from slimtower.serving.dims import truncate
from slimtower.serving.index_files import read_index_manifest
from slimtower.serving.manifest import FORMAT, SHARED, Collection, EncoderSettings, Manifest, Probe
from slimtower.serving.query_encoder import load_query_encoder
from slimtower.serving.release import Release, load_release
from steps.core.judged import read_judged_sets
from steps.encoders.towers import encode, load_tower
from steps.release.card import write_card
from steps.release.documents import carry_lexical, copy_index, lexical_index, write_titles
from steps.release.export import export
from steps.release.forms import LIMITS, Bench, Limits, explain
from steps.release.params import ReleaseParams
from steps.release.parity import check_export, check_unjudged, few_judged, probe_texts, query_texts, sample_texts
from steps.release.quality import check_costs
from steps.tracking.release_model import log_release
from steps.tracking.runs import Run, flatten

LEAST_COSINE = 0.9999  # of the fp32 export to the student, for every text
PROBES = 8  # titles whose embeddings the manifest keeps to recognise its encoder by; too few: sentences, then queries
PROBE_TOLERANCE = 0.005
"""Largest difference of one dimension of a probe of length 1. Another processor may round an int8 activation the
other way (0.0018 the most in 600 texts of the demo, VNNI against emulated AVX2); any two students of it are at least
0.036 apart.
"""
SAMPLE = 256  # texts that int8 is calibrated on, and of a data set with too few judged queries


def run(
    student: str,
    distill: Path,
    index: Path,
    ingest: Path,
    output: Path,
    params: ReleaseParams,
    run: Run,
    ignore_identical_ids: bool = False,
    limits: Limits = LIMITS,
) -> None:
    """Write query_encoder/, serving/, index/, manifest.json, report.json and README.md; lexical/ where it is carried.

    With `precision: auto` the encoder serves in the first of its forms that costs no more than the limits allow on dev
    queries, or in cosine to the student where fewer than FEWEST are judged. UserError when the two sides have different
    teachers, when the export is not the student, or when dev queries prove that serving loses more than allowed.
    """
    documents = read_index_manifest(index)
    distilled: dict[str, Any] = read_json(distill / "report.json")
    if distilled["teacher"] != documents["teacher"]:
        raise UserError(
            f"{distill}: distilled from another teacher than {index} was made with; run `dvc repro release@{student}`"
        )
    dim, datasets = int(documents["dim"]), sorted(documents["datasets"])
    queries = [
        replace(judged_set, ignore_identical_ids=ignore_identical_ids)
        for judged_set in read_judged_sets(ingest, ["dev"])
        if judged_set.dataset in datasets
    ]
    judged = [text for judged_set in queries for text in judged_set.texts]
    few = few_judged(datasets, queries)
    samples = {name: sample_texts(ingest, name, SAMPLE) for name in few}
    probed = probe_texts(ingest, PROBES)
    texts = [*judged, *chain.from_iterable(samples.values()), *probed]
    tower = load_tower(distill / "query_encoder")
    vectors = encode(tower, texts, "query")
    if vectors.shape[1] < dim:
        raise UserError(f"{distill}: the student has {vectors.shape[1]} dimensions, the index {dim}; lower index.dim")
    narrowed, vectors = vectors.shape[1] > dim, truncate(vectors, dim)

    with staged_folder(output) as staging:
        shutil.copytree(distill / "query_encoder", staging / "query_encoder")
        copy_index(index, staging / "index")
        write_titles(ingest, staging / "index", datasets)
        form = export(staging / "query_encoder", staging / "serving", dim)
        exported = load_query_encoder(staging / "serving").encode(texts)
        worst = check_export(texts, vectors, exported, LEAST_COSINE)
        indexed = _digests(staging / "index")

        def manifest(served: np.ndarray) -> Manifest:
            tail = (rows[-len(probed) :].astype(float).round(6).tolist() for rows in (vectors, served))
            probes = [
                Probe(text=text, student_vector=before, exported_vector=after)
                for text, before, after in zip(probed, *tail, strict=True)
            ]
            return _manifest(student, staging, documents, indexed, probes)

        bench = Bench(Release(staging, manifest(exported)), queries, samples, few, texts, vectors, exported)
        with TemporaryDirectory(dir=staging) as folder:
            trials = bench.trials(Path(folder), form, params.precision, limits, query_texts(ingest, SAMPLE))
            chosen = trials[-1]
            shutil.rmtree(staging / "serving")
            (Path(folder) / chosen.precision).rename(staging / "serving")
        verdicts = carry_lexical(bench.release, ingest, queries, chosen.served, params.lexical)
        lexical = lexical_index(verdicts, _digests(staging / "lexical"))
        dims = [width for width in distilled.get("dims", []) if width < dim]
        update = {"lexical": lexical, "dims": dims}
        card = manifest(chosen.served).model_copy(update=update)
        write_card(staging, card, chosen, distilled["base"], narrowed)
        manifest(chosen.served).model_copy(update=update).write(staging / "manifest.json")  # names the card too
        load_release(staging)
        if chosen.parity and chosen.parity.proven:
            raise UserError(
                f"release: what serves, {chosen.precision}, loses {chosen.parity}; set release.precision: auto"
            )
        check_costs(chosen.costs)
        check_unjudged(chosen.unjudged, limits.cosine)
        report = {
            "student": student,
            "format": form,
            "exported_cosine_min": worst,
            "texts": len(texts),
            "bytes": {name: folder_bytes(staging / name) for name in ("query_encoder", "serving", "index", "lexical")},
            **chosen.as_dict(limits),
            "why": explain(trials, limits),
            "lexical": {dataset: verdict.as_dict() for dataset, verdict in verdicts.items()},
            "tried": [trial.as_dict(limits) for trial in trials],
        }
        write_json(staging / "report.json", report)
    print(f"release@{student}: {report['why']}")
    cosines: dict[str, list[str]] = {}  # by the reason: many data sets may share it
    for dataset, closeness in chosen.unjudged.items():
        cosines.setdefault(closeness.reason, []).append(f"{dataset} {closeness.served_cosine_mean:.4f}")
    for reason, means in cosines.items():
        print(f"release@{student}: {reason}, so only cosines check what serving costs: {', '.join(means)} on average")
    for dataset, verdict in verdicts.items():
        print(f"release@{student}: {verdict.as_text(dataset)}")
    run.param("student", student)
    run.param("serves_in", chosen.precision)
    run.metrics({name: value for name, value in flatten(report).items() if isinstance(value, int | float)})
    run.artifact(output / "manifest.json")
    run.artifact(output / "report.json")
    log_release(run, output, f"release-{student}", once=True)


def _manifest(
    student: str,
    folder: Path,
    documents: dict[str, Any],
    indexed: dict[str, str],
    probes: list[Probe],
) -> Manifest:
    files = dict(indexed)
    length = float(np.linalg.norm([probe.student_vector for probe in probes], axis=1).mean())
    return Manifest(
        format=FORMAT,
        student=student,
        student_files=_digests(folder / "query_encoder"),
        serving_files=_digests(folder / "serving"),
        encoder_settings=EncoderSettings.model_validate(read_json(folder / "serving" / "serving.json")),
        index_manifest=files.pop("manifest.json"),
        index_files=files,
        datasets={
            name: Collection(vectors=entry["vectors"], corpus_digest=entry["corpus_digest"])
            for name, entry in documents["datasets"].items()
        },
        **{field: documents[field] for field in SHARED},
        probes=probes,
        probe_tolerance=PROBE_TOLERANCE * length,
    )


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}
