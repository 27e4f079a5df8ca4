"""python -m bench.static_peers [--runs FOLDER,...] [--only NAME] [--seeds 1,2,3]: token tables, ours and others'.

One teacher, one frozen index, one machine: every contestant is given the alignment texts of a pipeline's run with the
teacher's vectors of them, and its own vectors of queries search the teacher's document vectors, exactly. `static` of
params.yaml also learns which document a text is from and how the index ranks; `vectors` is the same without both. Ours
are released in int8; the others are what their packages' documentation recommends. Seconds are of all that a contestant
does; ours leave out that `embed` has read the teacher's vocabulary, half a minute, which the others do themselves.
Needs model2vec, skeletoken and pynife (`PACKAGES`). Writes bench/results/static_peers.json; with --only (a part of a
name) the rows of some contestants join those that are there.
"""

import argparse
import importlib
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

from bench.machine import machine, recording, write_record
from bench.tables.cells import teacher_scores
from bench.tables.expected import parse_seeds
from bench.tables.pipeline import Pipeline, Scores, open_pipeline
from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, read_json
from slimtower.serving.query_encoder import load_query_encoder
from steps.core.tables import read_table
from steps.distill.params import StudentParams
from steps.encoders.precision import device
from steps.encoders.towers import encode
from steps.evaluate import latency
from steps.release.export import convert, export
from steps.tracking.run_ids import git_commit

RESULT = Path("bench/results/static_peers.json")
PACKAGES = {"model2vec": "0.10.0", "skeletoken": "0.6.1", "pynife": "0.1.0"}
OURS = "static"
VECTORS = {"losses": [{"kind": "embedding", "distance": "cosine"}], "labels": "train", "teacher_top_k": 0,
           "document_share": 0.0}  # fmt: skip
SEEDS = [1, 2, 3]
QUERY_PARTS = ("train_queries", "unlabelled_queries", "generated_queries", "titles")  # NIFE's second stage learns these
TIMED = 500  # queries one by one
VOCABULARY = 100_000  # NIFE's models have about so many tokens
MILLION = 1e6


@dataclass(frozen=True)
class Task:
    """What every contestant learns: texts, their parts and the teacher's vectors of them, `(texts, dim)` float32."""

    pipeline: Pipeline
    texts: list[str]
    parts: np.ndarray
    vectors: np.ndarray

    @property
    def teacher(self) -> str:
        """Folder of the teacher's query tower."""
        return str((self.pipeline.teach / "tower").resolve())


@dataclass(frozen=True)
class Student:
    """A trained student: its query encoder, and the megabytes that it is loaded from."""

    encode: latency.Encode
    megabytes: float


def read_task(root: Path) -> Task:
    pipeline = open_pipeline(root)
    texts = read_table(pipeline.embed, "alignment_texts")["text"].to_pylist()
    vectors = np.asarray(np.load(pipeline.embed / "alignment.npy", mmap_mode="r"), dtype=np.float32)
    return Task(pipeline, texts, pipeline.parts, vectors)


def vectors_alone(task: Task, seed: int, folder: Path) -> Student:
    """`static` with nothing to learn but the vectors of the texts, as the others."""
    return slimtower(task, seed, folder, **VECTORS)


def slimtower(task: Task, seed: int, folder: Path, **changes: Any) -> Student:
    """`static` of params.yaml with some knobs changed, released in int8."""
    pipeline = task.pipeline
    described = pipeline.params.student[OURS].model_dump() | changes
    student = {OURS: StudentParams.model_validate(described)}
    params = pipeline.params.model_copy(update={"seed": seed, "student": student})
    pipeline.distil(OURS, params, folder / "distilled")
    form = export(folder / "distilled/query_encoder", folder / "fp32", 0)
    convert(folder / "fp32", folder / "int8", form, "int8", [])
    return Student(load_query_encoder(folder / "int8").encode, folder_bytes(folder / "int8") / MILLION)


def distilled_table(task: Task, seed: int, folder: Path) -> Student:
    """model2vec's `distill` in the teacher's own space (`pca_dims=None`), else as it comes. It reads no text."""
    model = importlib.import_module("model2vec.distill").distill(task.teacher, pca_dims=None)
    model.save_pretrained(str(folder / "saved"))
    return Student(lambda texts: np.asarray(model.encode(texts)), folder_bytes(folder / "saved") / MILLION)


def trained_head(task: Task, seed: int, folder: Path) -> Student:
    """model2vec's `distill` as it comes, then `StaticModelForSimilarity` as it comes: a table with an MLP behind it."""
    table = importlib.import_module("model2vec.distill").distill(task.teacher)
    return _fitted(task, seed, folder, table)


def trained_table(task: Task, seed: int, folder: Path) -> Student:
    """The same without an MLP (`n_layers=0`), over a table in the teacher's own space: of the form of ours."""
    table = importlib.import_module("model2vec.distill").distill(task.teacher, pca_dims=None)
    return _fitted(task, seed, folder, table, n_layers=0)


def _fitted(task: Task, seed: int, folder: Path, table: Any, **form: int) -> Student:
    module = importlib.import_module("model2vec.train.similarity")
    learner = module.StaticModelForSimilarity.from_static_model(model=table, out_dim=task.vectors.shape[1], **form)
    learner.fit(task.texts, torch.from_numpy(task.vectors), random_seed=seed)
    model = learner.to_pipeline()
    model.save_pretrained(str(folder / "saved"))
    return Student(lambda texts: np.asarray(model.predict(texts)), folder_bytes(folder / "saved") / MILLION)


def nife(task: Task, seed: int, folder: Path) -> Student:
    """The recipe of pynife's documentation.

    The teacher's tokenizer with the words of the texts, rows as the teacher embeds each token, cosine loss; first all
    texts, then those that are like queries, at a tenth of the rate. pynife 0.1.0 does not work with the skeletoken that
    model2vec needs, so words are added, tokens embedded and means taken here, as its documentation says. No token is
    removed: rare ones do no harm.
    """
    counted, losses, skeletoken = (
        importlib.import_module(name) for name in ("pynife.tokenizer.count_vocabulary", "pynife.losses", "skeletoken")
    )
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(task.teacher, trust_remote_code=False)
    counts, known = counted.count_tokens_in_dataset(tokenizer, task.texts), tokenizer.get_vocab()
    new = [item["token"] for item in counts if item["token"] not in known][: VOCABULARY - len(known)]
    described = skeletoken.TokenizerModel.from_transformers_tokenizer(tokenizer)
    wider = described.add_tokens_to_vocabulary(new, preprocess_tokens=False).to_transformers()
    tokens = sorted(vocabulary := wider.get_vocab(), key=lambda token: vocabulary[token])
    rows = encode(task.pipeline.teacher, [token.removeprefix("##") for token in tokens], "query")
    model = SentenceTransformer(modules=[StaticEmbedding(wider, embedding_weights=rows)], device="cpu")
    loss = losses.CosineLoss(model)
    _nife_stage(task, seed, folder, model, loss, np.arange(len(task.texts)), rate=0.01)
    _nife_stage(task, seed, folder, model, loss, np.flatnonzero(np.isin(task.parts, QUERY_PARTS)), rate=0.001)
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    served = SentenceTransformer(str(folder / "saved"), device="cpu", trust_remote_code=False)
    return Student(lambda texts: np.asarray(served.encode(texts)), folder_bytes(folder / "saved") / MILLION)


def _nife_stage(
    task: Task,
    seed: int,
    folder: Path,
    model: SentenceTransformer,
    loss: torch.nn.Module,
    rows: np.ndarray,
    rate: float,
) -> None:
    """One stage: five epochs with a warm-up, by the documentation's settings."""
    data = Dataset.from_dict({"sentence": [task.texts[row] for row in rows], "label": list(task.vectors[rows])})
    SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(folder / "trainer"), num_train_epochs=5, per_device_train_batch_size=128, learning_rate=rate,
            lr_scheduler_type="cosine_warmup_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": 0.1}, warmup_steps=0.1,
            weight_decay=0.01, seed=seed, save_strategy="no", report_to="none", use_cpu=device() == "cpu",
            disable_tqdm=True,
        ),
        train_dataset=data,
        loss=loss,
    ).train()  # fmt: skip


CONTESTANTS: dict[str, Callable[[Task, int, Path], Student]] = {
    "slimtower `static`, int8": slimtower,
    "slimtower `static`, vectors alone, int8": vectors_alone,
    "model2vec `distill`": distilled_table,
    "model2vec `StaticModelForSimilarity`, as it comes": trained_head,
    "model2vec `StaticModelForSimilarity`, a table alone": trained_table,
    "NIFE's recipe": nife,
}
UNSEEDED = {distilled_table}  # they draw nothing


def retained(scores: Scores, teacher: Scores) -> dict[str, float]:
    """Share of the teacher's nDCG@10 by split, the mean over its data sets."""
    return {
        split: fmean(fmean(scores[split][name]) / fmean(values) for name, values in sets.items())
        for split, sets in teacher.items()
    }


def measure(root: Path, seeds: Sequence[int], folder: Path, only: str = "") -> dict[str, Any]:
    """Every contestant with `only` in its name on one run, by its name."""
    task = read_task(root)
    pipeline, teacher = task.pipeline, teacher_scores(task.pipeline, ())["0"]
    students: dict[str, Student] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, train in ((name, train) for name, train in CONTESTANTS.items() if only in name):
        shares, seconds = [], []
        for seed in [0] if train in UNSEEDED else seeds:
            place = folder / f"{len(students)}.{seed}"
            random.seed(seed)
            started = time.perf_counter()
            students[name] = train(task, seed, place)
            seconds.append(time.perf_counter() - started)
            queries = {
                f"{item.split}/{item.dataset}": students[name].encode(item.texts) for item in pipeline.judged_sets
            }
            vectors = {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in queries.items()}
            shares.append(retained(pipeline.score(vectors, pipeline.documents, ())["0"], teacher))
            print(f"{root.name}: {name}, seed {seed}: {shares[-1]}, {seconds[-1]:.0f} s", flush=True)
        rows[name] = {
            "git_commit": git_commit(),
            "seeds": list(seeds),
            "retention": {split: _spread([share[split] for share in shares]) for split in teacher},
            "seconds": round(fmean(seconds), 1),
            "megabytes": round(students[name].megabytes, 1),
        }
    return {
        "documents": len(pipeline.documents),
        "texts": len(task.texts),
        "queries": {split: sum(map(len, sets.values())) for split, sets in teacher.items()},
        "teacher": {split: fmean(map(fmean, sets.values())) for split, sets in teacher.items()},
        "students": timed(rows, students, [text for item in pipeline.judged_sets for text in item.texts]),
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None, "values": list(values)}


def timed(
    rows: Mapping[str, dict[str, Any]], students: Mapping[str, Student], texts: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The rows with milliseconds of one query and queries/s in batches; the encoders take turns."""
    encoders = {name: student.encode for name, student in students.items()}
    some = latency.sample(list(texts), TIMED, 7)
    speeds = latency.measure(encoders, some, some, latency.THROUGHPUT_BATCH)
    return {
        name: row | {"p50_ms": round(speeds[name].p50_ms, 4), "queries_per_second": round(speeds[name].qps)}
        for name, row in rows.items()
    }


def check_packages() -> None:
    """UserError unless the peers' packages are there, in the versions that were looked at."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    if found != PACKAGES:
        pins = " ".join(f"'{package}'=={pin}" for package, pin in PACKAGES.items())  # token= would be masked
        raise UserError(f"bench.static_peers: needs its peers; run `.venv/bin/pip install --no-deps {pins}`")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.static_peers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", default="runs/scifact", help="folders of pipelines' runs, separated by commas")
    parser.add_argument("--only", default="", help="contestants with this in their name")
    parser.add_argument("--seeds", default="", help=f"absent = {SEEDS}")
    words = parser.parse_args()
    if not any(words.only in name for name in CONTESTANTS):
        raise UserError(f"--only: {words.only!r} is in none of {', '.join(CONTESTANTS)}")
    if any(words.only in name and "slimtower" not in name for name in CONTESTANTS):
        check_packages()
    seeds, roots = parse_seeds(words.seeds, SEEDS), [Path(name) for name in words.runs.split(",")]
    for root in roots:
        open_pipeline(root)
    runs = {}
    for root in roots:
        with TemporaryDirectory(prefix="bench-peers.") as name:
            os.environ["SLIMTOWER_CACHE"] = f"{name}/cache"  # no checkpoint of an earlier seed
            runs[root.name] = measure(root, seeds, Path(name), words.only)
    earlier = read_json(RESULT)["runs"] if words.only and RESULT.is_file() else {}
    for name, run in earlier.items():
        runs[name] = run | {"students": run["students"] | runs.get(name, run)["students"]}
    write_record(RESULT, {"machine": machine() | PACKAGES, "runs": runs})


if __name__ == "__main__":
    recording(main)
