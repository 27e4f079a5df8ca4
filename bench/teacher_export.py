"""python -m bench.teacher_export [--run FOLDER]: the teacher itself as a release would serve it, beside the students.

How much of a student's speed is distillation, and how much ONNX and int8? The teacher's query side is exported with all
its layers, by the code that exports students. Everything is timed in one run, on one thread, and searches the exact
index with the test queries. Writes bench/results/teacher_export.json: p50 and queries/s in batches of 32, bytes, and
the share of the teacher's nDCG@10 with a 95 % bootstrap interval, by data set. FOLDER is a pipeline's run (default: the
present one), whose name the file then has in it. Exit code 3 without one.
"""

import argparse
import os
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import recording, write_record
from bench.teacher import index_teacher
from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes
from slimtower.serving.dims import truncate
from slimtower.serving.query_encoder import load_query_encoder
from slimtower.serving.release import Release, load_release
from slimtower.serving.tower_files import tower_bytes
from steps.core.judged import read_judged_sets
from steps.core.measures import NDCG
from steps.core.params import load_ignore_identical_ids, load_students
from steps.encoders.towers import encode, load_tower
from steps.evaluate.comparing import figures
from steps.evaluate.latency import Encode, measure, sample
from steps.evaluate.scoring import score
from steps.evaluate.systems import TEACHER, dense_search, remembering
from steps.release.export import convert, export
from steps.release.parity import query_texts
from steps.release.run import SAMPLE

RESULT = Path("bench/results/teacher_export.json")
BATCH = 32  # queries
TIMED, BATCHED, SAMPLES, SEED = 300, 256, 2000, 7


def exported(teacher: Path, folder: Path) -> dict[str, Path]:
    """The teacher's query side in ONNX, by precision."""
    tower = folder / "tower"
    load_tower(teacher, "query").save_pretrained(str(tower), create_model_card=False)
    folders = {precision: folder / precision for precision in ("fp32", "int8")}
    export(tower, folders["fp32"], 0)
    convert(folders["fp32"], folders["int8"], "onnx", "int8", query_texts(Path("data/ingest"), SAMPLE))
    return folders


def encoders(teacher: Path, releases: dict[str, Release], folder: Path) -> tuple[dict[str, Encode], dict[str, int]]:
    """The teacher in PyTorch and exported, and the students as they are released: how they encode, and their bytes."""
    tower = load_tower(teacher, "query")
    dim = next(iter(releases.values())).manifest.dim
    how: dict[str, Encode] = {TEACHER: lambda texts: truncate(encode(tower, list(texts), "query"), dim)}
    sizes = {TEACHER: tower_bytes(teacher, "query")}
    for precision, path in exported(teacher, folder).items():
        served = load_query_encoder(path).encode
        how[f"{TEACHER}, ONNX {precision}"] = lambda texts, served=served: truncate(served(texts), dim)
        sizes[f"{TEACHER}, ONNX {precision}"] = folder_bytes(path)
    for name, release in releases.items():
        how[name], sizes[name] = release.encode, release.model_bytes
    return how, sizes


def report() -> dict[str, Any]:
    """Speed and quality of each, by name; UserError where the run has no release or no judged test query."""
    releases = {name: load_release(Path("models/release") / name) for name in load_students(Path("params.yaml"))}
    own_ids = load_ignore_identical_ids(Path("params.yaml"))
    judged = [replace(item, ignore_identical_ids=own_ids) for item in read_judged_sets(Path("data/ingest"), ["test"])]
    if not judged:
        raise UserError("data/ingest: no test query is judged; run `make demo`, whose queries are")
    with TemporaryDirectory(prefix="bench-teacher-export.") as scratch:
        how, sizes = encoders(index_teacher() / "tower", releases, Path(scratch))
        texts = [text for item in judged for text in item.texts]
        speed = measure(how, sample(texts, min(TIMED, len(texts)), SEED), sample(texts, BATCHED, SEED), BATCH)
        release = next(iter(releases.values()))
        quality = {}
        for item in judged:
            values = {
                name: score(name, dense_search(remembering(encoder), release), item, 10, exact=True).values[NDCG]
                for name, encoder in how.items()
            }
            quality[item.dataset] = figures(values, SAMPLES, SEED)
    return {
        "systems": {name: asdict(speed[name]) | {"bytes": sizes[name]} for name in how},
        "datasets": quality,
    }


def table(result: dict[str, Any]) -> str:
    """What was found, as lines for a terminal: nDCG@10 by data set, and speed."""
    slowest = result["systems"][TEACHER]["p50_ms"]
    lines = []
    for name, row in result["systems"].items():
        quality = ", ".join(
            f"{dataset} {by_system['ndcg'][name]:.4f}" for dataset, by_system in result["datasets"].items()
        )
        lines.append(
            f"{name:22} {quality}  p50 {row['p50_ms']:8.3f} ms ({slowest / row['p50_ms']:.1f} times faster)"
            f"  {row['qps']:9,.0f} queries/s  {row['bytes'] / 1e6:6.1f} MB"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.teacher_export", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path(), help="a pipeline's run (default: here)")
    here, run = Path.cwd(), parser.parse_args().run
    if not (run / "models/release").is_dir():
        raise UserError(f"{run}/models/release: not found; run `make demo` first, or give the folder of another run")
    os.chdir(run)
    try:
        result = report()
    finally:
        os.chdir(here)
    target = RESULT if run.resolve() == here else RESULT.with_stem(f"{RESULT.stem}.{run.resolve().name}")
    print(table(result))
    write_record(target, result)


if __name__ == "__main__":
    recording(main)
