"""Speed of query encoders on one thread, text to embedding; a part of bench.serving.

The teacher and its students of layers run through sentence-transformers, the exports as a release serves them. Texts
are the dev and test queries of data/ingest. Models are those of `dvc repro` where they exist; else the bundled MiniLM,
some of its layers and a table of random rows, which are as fast as trained ones. All take turns in one run: compare
within a run only.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from bench.teacher import index_teacher
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.serving.query_encoder import ONNX_FILES, PROJECTION, TABLE_FILES, load_query_encoder
from steps.core.tables import read_table
from steps.distill.initialisation import layer_subset
from steps.distill.static_embedding import table_tower
from steps.encoders.bases import resolve_base
from steps.encoders.towers import load_tower
from steps.evaluate.latency import Encode, sample
from steps.evaluate.latency import measure as take_turns
from steps.release.export import convert, export

INGEST, MODELS = Path("data/ingest"), Path("models")
BATCH_SIZES = (1, 4, 8, 16, 32, 64, 256)
CALIBRATION = 256  # texts that int8 is calibrated on; what it loses is not measured here
SINGLE, BATCHED = 1000, 256  # queries timed one by one, and in batches (a multiple of each batch size)
TEACHER = "teacher"
LAYERS = {"2l": [0, -1], "4l": [0, 1, -2, -1]}
SEED = 7


def measure(folder: Path, single: int, batched: int) -> dict[str, Any]:
    """p50 and p99 in milliseconds of one query, queries/s by batch size, and how many times faster than the teacher.

    `single` queries are timed one by one, `batched` in batches; what is exported for it stays below `folder`.
    """
    texts = query_texts()
    encoders, origin = served_encoders(folder)
    sizes = {key: _model_bytes(path) for key in encoders if (path := folder / key).is_dir()}
    singles, batches = sample(texts, single, SEED), sample(texts, batched, SEED)
    results = {
        size: take_turns(encoders, singles if size == 1 else singles[:25], batches, size) for size in BATCH_SIZES
    }
    teacher = results[1][TEACHER]
    tokens = load_tower(_teacher_folder()).tokenizer
    return {
        "queries": single,
        "mean_tokens": round(float(np.mean([len(tokens(text)["input_ids"]) for text in singles])), 1),
        "encoders": {
            key: {
                "origin": origin[key],
                "p50_ms": round(results[1][key].p50_ms, 4),
                "p99_ms": round(results[1][key].p99_ms, 4),
                "times_faster": round(teacher.p50_ms / results[1][key].p50_ms, 1),
                "queries_per_second": {str(size): round(results[size][key].qps, 1) for size in BATCH_SIZES},
            }
            | ({"bytes": sizes[key]} if key in sizes else {})
            for key in encoders
        },
    }


def _model_bytes(serving: Path) -> int:
    """Size of what an encoder is loaded from, its tokenizer included."""
    described = read_json(serving / "serving.json")
    layout = {"table": TABLE_FILES, "onnx": ONNX_FILES}[described["format"]]
    names = [*layout[described["precision"]], PROJECTION, "tokenizer.json"]
    return sum((serving / name).stat().st_size for name in names if (serving / name).is_file())


def query_texts() -> list[str]:
    texts = [row["text"] for row in read_table(INGEST, "queries").to_pylist() if row["split"] in {"dev", "test"}]
    if not texts:
        raise UserError(f"{INGEST / 'queries.parquet'}: no dev or test queries; run `dvc repro` (or `make demo`)")
    return texts


def _teacher_folder() -> Path:
    trained = index_teacher() / "tower"
    return trained if trained.is_dir() else Path(resolve_base("all-MiniLM-L6-v2"))


def served_encoders(folder: Path) -> tuple[dict[str, Encode], dict[str, str]]:
    """Encoders by name, exported below `folder` unless they lie there, and what each is."""
    source = _teacher_folder()
    teacher = load_tower(source)
    towers = {name: _student(name, folder, partial(layer_subset, source, layers)) for name, layers in LAYERS.items()}
    encoders: dict[str, Encode] = {TEACHER: _encode(teacher)}
    encoders |= {name: _encode(load_tower(tower)) for name, (tower, _) in towers.items()}
    origin = {TEACHER: str(source.relative_to(".")) if not source.is_absolute() else "all-MiniLM-L6-v2"}
    origin |= {name: description for name, (_, description) in towers.items()}
    served = {f"{name}.onnx": student for name, student in towers.items()}
    served["static.table"] = _student("static", folder, lambda: _random_table(teacher))
    for name, (tower, description) in served.items():
        exported = folder / f"{name}.fp32"
        if not (exported / "serving.json").is_file():
            form = export(tower, exported, 0)
            convert(exported, folder / f"{name}.int8", form, "int8", query_texts()[:CALIBRATION])
        for precision in ("fp32", "int8"):
            key = f"{name}.{precision}"
            encoders[key], origin[key] = load_query_encoder(folder / key).encode, description
    return encoders, origin


def _student(name: str, folder: Path, untrained: Callable[[], SentenceTransformer]) -> tuple[Path, str]:
    """The trained student's folder, or an untrained one below `folder`."""
    trained = MODELS / "distill" / name / "query_encoder"
    if trained.is_dir():
        return trained, str(trained)
    if not (folder / f"{name}.tower").is_dir():
        untrained().save_pretrained(str(folder / f"{name}.tower"), create_model_card=False)
    return folder / f"{name}.tower", "untrained"


def _random_table(teacher: SentenceTransformer) -> SentenceTransformer:
    shape = (len(teacher.tokenizer), teacher.get_embedding_dimension() or 0)
    return table_tower(teacher, teacher.tokenizer, np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32))


def _encode(tower: SentenceTransformer) -> Encode:
    return lambda texts: np.asarray(tower.encode(texts, batch_size=max(BATCH_SIZES), show_progress_bar=False))
