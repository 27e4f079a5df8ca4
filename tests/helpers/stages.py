"""A tiny data set, and the stages from `embed` to `release` run on it with a tiny teacher."""

import inspect
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from rows import write_rows

from steps.core.corpus import CorpusTexts
from steps.distill.params import DistillParams
from steps.distill.sources import Sources
from steps.embed.params import EmbedParams
from steps.index.params import IndexParams
from steps.release.forms import Limits
from steps.release.params import ReleaseParams
from steps.score.params import ScoreParams
from steps.scorers.base import Reading
from steps.tracking.runs import NullRun, Run

TOPICS = ["sum", "mean", "matrix", "string", "axis", "file", "window", "graph"]
EMBED = EmbedParams(
    parts=["train_queries", "generated_queries", "titles", "sentences", "unlabelled_queries"],
    max_part_texts=0,
    least_texts=0,
    neighbours=4,
    precision="fp32",
    batch_size=16,
    seed=1,
)
SCORE = ScoreParams(
    teachers=["other"],
    depth=0,
    positives=0,
    max_texts=0,
    pairs=0,
    layers=False,
    batch_size=16,
    shard_texts=24,
    precision="fp32",
)
INDEX = IndexParams(kind="ivfflat", factory="IVF2,Flat", target_recall=0.9, seed=1)
# The losses of a random network on eight queries mean nothing: the tests of the limits set them.
RELEASE = ReleaseParams(precision="int8", lexical="never")
LOOSE = Limits(parity=1.0, total=1.0, cosine=0.9)
FAST = {"epochs": 1.0, "batch_size": 16, "learning_rate": 1e-3, "warmup_ratio": 0.1}
ALIGNED = [{"kind": "embedding", "distance": "squared_error"}]
TWO_LAYERS = FAST | {"start": {"layers": [0, -1]}, "losses": ALIGNED, "weight_decay": 0.01}
STATIC = {"start": {"static": {}}, "losses": [{"kind": "embedding", "distance": "cosine"}], "epochs": 2.0,
          "batch_size": 32, "learning_rate": 0.02, "warmup_ratio": 0.1}  # fmt: skip
RANKED = FAST | {"start": {"layers": [0, -1]}, "teacher_top_k": 2,
                 "losses": [{"kind": "label_softmax", "temperature": 0.2},
                            {"kind": "score_softmax", "temperature": 0.2},
                            {"kind": "embedding", "distance": "l2"}]}  # fmt: skip
REFINED = {"epochs": 1.0, "learning_rate": 1e-3, "labels": "pseudo", "teacher_top_k": 2,
           "losses": [{"kind": "label_softmax", "temperature": 0.2},
                      {"kind": "score_squared", "weight": 0.1}]}  # fmt: skip
FRESH = TWO_LAYERS | {"start": {"fresh": {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 300}}}
LAYERS = {"kind": "layer_distillation", "layers": 2, "selection": "weighted"}
LAYERED = FAST | {"start": {"layers": [0, 1, -1]}, "teacher_top_k": 2, "losses": [*ALIGNED, LAYERS]}
JOINT = FAST | {"start": {"layers": [0, 1, -1]}, "towers": "symmetric", "max_document_length": 32,
                "losses": [{"kind": "label_softmax"}],
                "then": [{"targets": "joint", "epochs": 1.0, "learning_rate": 1e-3, "teacher_top_k": 1,
                          "losses": [{"kind": "label_softmax"}, {"kind": "teacher_label_softmax"},
                                     {"kind": "mutual_kl"}, LAYERS]}]}  # fmt: skip
DISTILL = {
    "students": ["static", "2l"],
    "seed": 1,
    "repeats": {"train_queries": 1.0, "titles": 1.0, "sentences": 1.0},
    "required_parts": [],
    "max_length": 32,
    "validation_texts": 16,
    "convergence": {"min_steps": 10, "max_steps": 1000, "min_gain": 0.01},
    "precision": "fp32",
    "student": {
        "static": STATIC,
        "weighed": STATIC | {"start": {"static": {"token_weights": "learned"}}},
        "2l": TWO_LAYERS,
        "ranked": RANKED | {"then": [REFINED]},
        "fresh": FRESH,
        "layered": LAYERED,
        "joint": JOINT,
    },
}


def reading(params: ScoreParams) -> Reading:
    """How a scorer reads texts, as `score` tells it."""
    return Reading(params.precision, params.batch_size, params.shard_texts)


def distill_params(**changes: object) -> DistillParams:
    """The tiny distillation with some values changed."""
    return DistillParams.model_validate(DISTILL | changes)


def write_mine(folder: Path) -> None:
    """A triplet for every query of the data set: the next document is the negative."""
    named = [(number, "one" if number % 2 else "two") for number in range(64) if number % 8 < 6]
    rows = [
        (f"{dataset}/q{number}", f"{dataset}/{number}", f"{dataset}/{(number + 2) % 64}", "click_one_hop", "", 1.0)
        for number, dataset in named
    ]
    write_rows(folder, "triplets", rows)


def write_ingest(folder: Path) -> Path:
    """Sixty-four documents in two data sets, a query each: test only in `one`, dev only in `two`."""
    corpus, queries, qrels = [], [], []
    for number in range(64):
        dataset = "one" if number % 2 else "two"
        first, second = TOPICS[number % 8], TOPICS[number // 8]
        title, content = f"{first} of {second}", f"Computes the {first} over a {second}. Number {number} is returned."
        doc_id = f"{dataset}/{number}"
        corpus.append((doc_id, dataset, title, "", content))
        split = "test" if number % 8 == 7 else "dev" if number % 8 == 6 else "train"
        queries.append((f"{dataset}/q{number}", dataset, f"how to {first} the {second} {number}", split))
        qrels.append((f"{dataset}/q{number}", dataset, doc_id, 1, split))
    tables = {"corpus": corpus, "qrels": qrels, "queries": queries, "unlabelled_queries": []}
    for name, rows in tables.items():
        write_rows(folder, name, rows)
    return folder


PLACES = {  # of what a stage reads, by the name of its argument
    "ingest": "data/ingest", "candidates": "data/candidates", "mine": "data/mine/relevance",
    "generate": "data/generate", "embed": "data/embed", "score": "data/score", "teach": "models/teach/dense",
    "index": "models/index",
}  # fmt: skip


def run_stage(stage: str, root: Path, output: Path, params: Any, run: Run | None = None, **arguments: Any) -> Path:
    """Run a stage on what it reads below `root`: each argument's place, or a path that is given; returns its output."""
    function = import_module(f"steps.{stage}.run").run
    names = inspect.signature(function).parameters.keys() & PLACES.keys() - arguments.keys()
    inputs = {name: root / PLACES[name] for name in names}
    overrides = {name: _below(root, value) for name, value in arguments.items()}
    function(**inputs, **overrides, output=output, params=params, run=run or NullRun())
    return output


def _below(root: Path, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _below(root, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_below(root, item) for item in value]
    return root / value if isinstance(value, Path) else value


def run_embed(root: Path, tower: Path) -> None:
    """Write data/ingest, data/mine, data/generate (empty), models/teach and data/embed below `root`."""
    write_ingest(root / "data/ingest")
    write_mine(root / "data/mine/relevance")
    write_rows(root / "data/generate", "generated_queries")
    shutil.copytree(tower, root / "models/teach/dense/tower", dirs_exist_ok=True)
    run_stage("embed", root, root / "data/embed", EMBED)


def corpus_texts(root: Path) -> list[str]:
    """The documents as teachers read them."""
    return list(CorpusTexts(root / "data/ingest"))


def sources_of(root: Path) -> Sources:
    """What a student of the run learns from."""
    return Sources(*(root / "data" / name for name in ("ingest", "mine/relevance", "embed", "score")))


def run_score(root: Path, teacher: str, params: ScoreParams = SCORE) -> Path:
    """Let the teacher in models/teach/<teacher> score; returns the folder of its scores."""
    if not (root / "data/mine/relevance/triplets.parquet").exists():  # nobody searched for them
        write_rows(root / "data/mine/relevance", "triplets")
    return run_stage("score", root, root / "data/score" / teacher, params, teach=Path("models/teach") / teacher)


def run_distill(root: Path, student: str, params: DistillParams, run: Run | None = None) -> Path:
    """Distil one student, and tell `run` about it; returns its folder."""
    return run_stage("distill", root, root / "models/distill" / student, params, run, student=student)


def run_index(root: Path, params: IndexParams = INDEX, run: Run | None = None) -> Path:
    """Index the documents; returns the folder."""
    return run_stage("index", root, root / "models/index", params, run)


def run_release(
    root: Path, student: str, params: ReleaseParams = RELEASE, index: IndexParams = INDEX, limits: Limits = LOOSE
) -> Path:
    """Index and release one student; returns the release."""
    run_index(root, index)
    arguments = {"student": student, "distill": Path("models/distill") / student, "limits": limits}
    return run_stage("release", root, root / "models/release" / student, params, **arguments)
