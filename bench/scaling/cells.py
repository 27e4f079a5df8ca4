"""A cell of the sweep: one tower trained from random weights, and its contrastive entropy on dev queries."""

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from sentence_transformers import SentenceTransformer
from torch import nn

from bench.machine import machine
from bench.scaling.described import Point, Sweep
from bench.teachers.mined import Mined
from pipeline.params import load_params
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file, write_json
from slimtower.common.settings import validated
from steps.core.code import code_digest
from steps.core.versions import library_versions
from steps.distill.initialisation import fresh
from steps.encoders.bases import resolve_base
from steps.encoders.precision import resolve_precision
from steps.encoders.towers import encode, load_tower
from steps.teach import run as stage
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.tracking.run_ids import git_commit
from steps.tracking.runs import NullRun

CELLS = Path(".cache/bench-scaling")
_CODE = [  # as it is when it is imported: a file may change during the sweep
    code_digest(
        "steps.teach.run", "steps.teach.kinds.dual_encoder", "steps.distill.initialisation", "steps.core.judged"
    ),
    sha256_file(Path(__file__)),
]


@dataclass(frozen=True)
class Asked:
    """Dev queries, and rows in the corpus of a relevant document `(q,)` and of negatives `(q, negatives)` of each."""

    texts: list[str]
    positives: np.ndarray
    negatives: np.ndarray


def teacher_of(mined: Mined, sweep: Sweep, where: str) -> DualEncoder:
    """The run's teacher of the index with the sweep's params; UserError where it is of another kind."""
    teach = load_params(mined.pipeline.root / "params.yaml").teach
    teacher = teach.described(teach.index)
    if not isinstance(teacher, DualEncoder):
        raise UserError(
            f"{mined.pipeline.root}/params.yaml: teach.index is a {teacher.kind}; a sweep trains dual_encoder"
        )
    return validated(DualEncoder, teacher.model_dump() | {"seed": sweep.seed} | sweep.teacher, f"{where}: teacher")


def asked_of(mined: Mined, sweep: Sweep) -> Asked:
    """Judged dev queries with their documents, as bench/scaling.yaml says; UserError for too few of either."""
    texts: list[str] = []
    positives: list[int] = []
    negatives: list[np.ndarray] = []
    pipeline = mined.pipeline
    for number, item in enumerate(item for item in pipeline.judged_sets if item.split == "dev"):
        draws = np.random.default_rng([sweep.seed, number])
        rows, ids = pipeline.corpus[item.dataset]
        row_of, order = dict(zip(ids, rows.tolist(), strict=True)), draws.permutation(rows)
        for position in draws.permutation(len(item.query_ids))[: sweep.queries].tolist():
            grades = item.qrels[item.query_ids[position]]
            relevant = sorted(row_of[doc] for doc, grade in grades.items() if grade > 0 and doc in row_of)
            irrelevant = order[~np.isin(order, relevant)][: sweep.negatives]
            if len(irrelevant) < sweep.negatives:
                raise UserError(f"{item.dataset}: has no {sweep.negatives} irrelevant documents; lower `negatives`")
            if relevant:
                texts.append(item.texts[position])
                positives.append(int(draws.choice(relevant)))
                negatives.append(irrelevant)
    if not texts:
        raise UserError(f"{pipeline.ingest}: has no judged dev query, on which the entropy is measured")
    return Asked(texts, np.array(positives), np.stack(negatives))


def contrastive_entropy(positives: np.ndarray, negatives: np.ndarray, temperature: float) -> np.ndarray:
    """`-log(e^(p/t) / (e^(p/t) + sum_j e^(n_j/t)))` of scores `(q,)` and `(q, negatives)`, `(q,)` nats.

    Fang et al., Scaling laws for dense retrieval (SIGIR 2024), Eq. 3, which ScalingNote measures by (Sec. 4.4).
    """
    scores = np.concatenate([positives[:, None], negatives], axis=1).astype(np.float64) / temperature
    entropy: np.ndarray = logsumexp(scores, axis=1) - scores[:, 0]
    return entropy


def entropy_of(tower: SentenceTransformer, mined: Mined, query_set: Asked, teacher: DualEncoder) -> np.ndarray:
    """The contrastive entropy of each query by a tower that compares inner products, `(q,)`."""
    rows, positions = np.unique(
        np.concatenate([query_set.positives[:, None], query_set.negatives], axis=1), return_inverse=True
    )
    texts = mined.pipeline.document_texts()
    documents = encode(tower, [texts[row] for row in rows.tolist()], "document", precision=teacher.precision)
    queries = encode(tower, query_set.texts, "query", precision=teacher.precision)
    scores = np.take_along_axis(queries @ documents.T, positions.reshape(len(queries), -1), axis=1)
    return contrastive_entropy(scores[:, 0], scores[:, 1:], teacher.temperature)


def parameters(tower: SentenceTransformer) -> int:
    """Parameters but for tables of embeddings (ScalingNote, Sec. 4.4.1) and for BERT's pooler, which nothing uses."""
    tables = sum(module.weight.numel() for module in tower.modules() if isinstance(module, nn.Embedding))
    return sum(weights.numel() for name, weights in tower.named_parameters() if ".pooler." not in name) - tables


def measured(point: Point, sweep: Sweep, mined: Mined, where: str) -> tuple[dict[str, Any], bool]:
    """The cell's figures, from disk where they were found before, and whether they were; `where`: the sweep's file."""
    teacher = teacher_of(mined, sweep, where).model_copy(update={"max_triplets": point.pairs})
    dependencies = {
        "teacher": teacher.model_dump(),
        "precision": resolve_precision(teacher.precision),
        "size": point.size.model_dump(),
        "asked": [sweep.queries, sweep.negatives, sweep.seed],
        "data": mined.digest,
        "code": _CODE,
        "packages": library_versions(),
    }
    path = CELLS / f"{hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()}.json"
    if path.is_file():
        return read_json(path), True
    figures = measure(point, teacher, sweep, mined)
    write_json(path, figures)
    return figures, False


def measure(point: Point, teacher: DualEncoder, sweep: Sweep, mined: Mined) -> dict[str, Any]:
    """Train the cell's tower and measure it; UserError where the run has too few triplets."""
    started, pipeline = time.perf_counter(), mined.pipeline
    query_set = asked_of(mined, sweep)
    with TemporaryDirectory(prefix="bench-scaling.") as folder:
        base, output = Path(folder) / "base", Path(folder) / "teacher"
        torch.manual_seed(sweep.seed)
        texts = pipeline.document_texts()
        longest = max(teacher.max_document_length, teacher.max_query_length)
        fresh(point.size, load_tower(resolve_base(teacher.base)), texts, longest).save_pretrained(str(base))
        params = teacher.model_copy(update={"base": str(base)})
        stage.run(pipeline.ingest, pipeline.mine, output, params, NullRun(), pipeline.rankers)
        trained = int(read_json(output / "report.json").get("triplets_an_epoch", 0))
        if trained < point.pairs:
            raise UserError(
                f"{pipeline.mine}: {trained} usable triplets, the sweep asks for {point.pairs}; lower `pairs`"
            )
        tower = load_tower(output / "tower")
        entropy = entropy_of(tower, mined, query_set, teacher)
    return {
        "parameters": parameters(tower),
        "pairs": point.pairs,
        "entropy": float(entropy.mean()),
        "standard_error": float(entropy.std(ddof=1) / np.sqrt(len(entropy))) if len(entropy) > 1 else None,
        "queries": len(entropy),
        "seconds": time.perf_counter() - started,
        "machine": machine(),
        "git_commit": git_commit(),
    }
