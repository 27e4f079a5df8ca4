"""python -m bench.release_forms [--run FOLDER] [--seeds 1,2,3,4,5]: what each form of a released encoder loses.

Distils the students of two and of four layers once a seed from what a pipeline's run left, releases each with
`precision: auto`, and measures beside it int8 as it was before activations were smoothed. Writes
bench/results/release_forms.json: nDCG@10 lost on dev and its p-value, mean cosine to the student, bytes and p50 of each
form; all forms of a student take turns while they are timed.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.machine import recording, write_record
from bench.tables.expected import parse_seeds
from pipeline.params import Params, load_params
from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes
from slimtower.serving.checks import embed_each
from slimtower.serving.dims import truncate
from slimtower.serving.query_encoder import load_query_encoder
from slimtower.serving.release import load_release
from steps.core.cosines import cosines
from steps.core.judged import JudgedSet, read_judged_sets
from steps.distill.run import run as distill
from steps.encoders.towers import encode, load_tower
from steps.evaluate import latency
from steps.release.export import convert, export
from steps.release.forms import LIMITS
from steps.release.onnx_encoder import quantise
from steps.release.parity import query_texts
from steps.release.quality import measured_loss, ndcg
from steps.release.run import SAMPLE
from steps.release.run import run as release
from steps.tracking.runs import NullRun

RESULT = Path("bench/results/release_forms.json")
STUDENTS = ("2l", "4l")
FORMS = ("int8, not smoothed", "int8", "mixed", "fp32")
TIMED = 200  # queries
SEEDS = [1, 2, 3, 4, 5]


def dev_sets(ingest: Path, datasets: Sequence[str]) -> list[JudgedSet]:
    """Judged dev queries of some data sets."""
    return [judged for judged in read_judged_sets(ingest, ["dev"]) if judged.dataset in datasets]


def forms(tower: Path, ingest: Path, folder: Path) -> dict[str, Path]:
    """The student in every form, each in a folder of its own, by name."""
    exported, plain = folder / "fp32", folder / "plain"
    export(tower, exported, 0)
    texts = query_texts(ingest, SAMPLE)
    for precision in ("int8", "mixed"):
        convert(exported, folder / precision, "onnx", precision, texts)  # type: ignore[arg-type]
    convert(exported, plain, "onnx", "int8", texts)
    quantise(exported / "encoder.onnx", plain / "encoder.int8.onnx")
    return dict(zip(FORMS, (plain, folder / "int8", folder / "mixed", exported), strict=True))


def measure(root: Path, student: str, seed: int, params: Params, folder: Path) -> dict[str, Any]:
    """One student of one seed: what was tried for its release, and what each form loses."""
    ingest, distilled = root / "data/ingest", folder / "distilled"
    distill(
        student=student,
        ingest=ingest,
        mine=root / "data/mine/relevance",
        embed=root / "data/embed",
        score=root / "data/score",
        teach=root / "models/teach" / params.teach.index,
        output=distilled,
        params=params.distill.model_copy(update={"seed": seed}),
        run=NullRun(),
    )
    target = folder / "release"
    release(student, distilled, root / "models/index", ingest, target, params.release, NullRun())
    opened = load_release(target)
    queries = dev_sets(ingest, opened.datasets)
    texts = [text for judged in queries for text in judged.texts]
    model = truncate(encode(load_tower(distilled / "query_encoder"), texts, "query"), opened.manifest.dim)
    before = np.concatenate(ndcg(opened, queries, model, "flat"))
    written = forms(distilled / "query_encoder", ingest, folder / "forms")
    encoders = {name: load_query_encoder(path) for name, path in written.items()}
    speeds = latency.measure(
        {name: encoder.encode for name, encoder in encoders.items()}, texts[:TIMED], texts[:TIMED], 1
    )
    rows = {}
    for name, encoder in encoders.items():
        served = embed_each(encoder.encode, texts)
        loss = measured_loss(before, np.concatenate(ndcg(opened, queries, served, "flat")), LIMITS.parity)
        rows[name] = {
            "loss": loss.share,
            "p_value": loss.p_value,
            "cosine_mean": float(cosines(served, model).mean()),
            "bytes": folder_bytes(written[name]),
            "p50_ms": round(speeds[name].p50_ms, 4),
        }
    return {"student": student, "seed": seed, "serves": opened.manifest.encoder_settings.precision, "forms": rows}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.release_forms", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path(), help="the folder of a pipeline's run")
    parser.add_argument("--seeds", default="", help=f"absent = {SEEDS}")
    words = parser.parse_args()
    if not (words.run / "models/index/manifest.json").is_file():
        raise UserError(f"{words.run}: no pipeline ran here up to `index`; run `make demo` first")
    params, measured = load_params(words.run / "params.yaml"), []
    for seed in parse_seeds(words.seeds, SEEDS):
        for student in STUDENTS:
            with TemporaryDirectory(prefix="bench-release.") as name:
                os.environ["SLIMTOWER_CACHE"] = f"{name}/cache"
                figures = measure(words.run, student, seed, params, Path(name))
            measured.append(figures)
            losses = [f"{form} {row['loss']:.2%} (p {row['p_value']:.2g})" for form, row in figures["forms"].items()]
            print(f"{student}, seed {seed}: serves {figures['serves']}; lost on dev: {', '.join(losses)}", flush=True)
    queries = sum(len(judged.query_ids) for judged in dev_sets(words.run / "data/ingest", _datasets(words.run)))
    write_record(RESULT, {"dev_queries": queries, "releases": measured})


def _datasets(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "models/index").iterdir() if path.is_dir())


if __name__ == "__main__":
    recording(main)
