"""Rounds of training: each goes on from the tower of the one before, over negatives which that tower finds itself."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from slimtower.common.errors import UserError
from slimtower.common.files import staged_file
from steps.core.leases import release_and_delete
from steps.core.texts import fold
from steps.teach.contrastive_training import Positives
from steps.teach.dev_comparison import compare
from steps.teach.hard_negatives import SearchedCorpus, mine_negatives
from steps.teach.kinds.base import Contrastive, OnTriplets
from steps.teach.training_triplets import TextTriplet
from steps.tracking.runs import NullRun, Run
from steps.training.checkpoint_files import acquire, keyed_folder, load_checkpoint_or_none
from steps.training.distributed import barrier, check_agreed, rank
from steps.training.library_trainer import is_sharded

_TRAINED = "trained.pt"  # weights of a finished round, in its folder
_CODE = ("steps.teach.contrastive_training", "steps.teach.llm_tower", "steps.teach.hard_negatives")
_SHARED = "the hosts do not see the same files there; let SLIMTOWER_CACHE be one volume that all of them mount"
Measure = Callable[[str], dict[str, float]]
"""nDCG@10 of each dev query with the tower as it is; what a progress bar calls it."""
Train = Callable[[SentenceTransformer, list[TextTriplet], Positives, Any, Path, Run], None]
"""Trains a tower in place on triplets and known positives, by the params of its kind, with checkpoints in a folder."""


@dataclass(frozen=True)
class Rounds:
    """What trainings leave: a report of each round after the first training, dev scores of the last tower, folders."""

    report: list[dict[str, Any]]
    ndcg: dict[str, float]
    folders: list[Path]

    def remove(self) -> None:
        """Forget their checkpoints."""
        for folder in self.folders:
            release_and_delete(folder)

    def save_earlier(self, tower: SentenceTransformer, output: Path) -> list[str]:
        """Save the tower of each training but the last as `output/round_0` and so on; returns these names."""
        names = []
        for number, folder in enumerate(self.folders[:-1]):
            names.append(name := f"round_{number}")
            tower.load_state_dict(_load(folder / _TRAINED))
            tower.save_pretrained(str(output / name), create_model_card=False, safe_serialization=True)
        return names


def train_in_rounds(
    tower: SentenceTransformer,
    train: Train,
    triplets: Sequence[TextTriplet],
    searched: SearchedCorpus,
    params: Contrastive,
    base: Mapping[str, float],
    measure: Measure,
    run: Run,
) -> Rounds:
    """Train the tower in place on the triplets, then `params.rounds.more` times on new negatives.

    A killed run goes on in its round. `base` has the base's nDCG@10 of each dev query. Rank 0 searches and measures.
    """
    current, positives, seconds = list(triplets), searched.positives, 0.0
    ndcg, report, folders = dict[str, float](), list[dict[str, Any]](), list[Path]()
    digest = searched.digest() if params.rounds.more else ""
    for number in range(params.rounds.more + 1):
        before, counts = ndcg, dict[str, int]()
        if number:
            current, counts = _next_triplets(tower, current, searched, params, number, folders[-1])
        folders.append(folder := checkpoint_folder(tower, current, positives, params, f"{number} {digest}"))
        acquire(folder, "teach")
        if not _take_up(tower, folder):
            start = time.monotonic()
            train(tower, current, positives, params, folder, _RoundRun(run, number) if number else run)
            seconds += time.monotonic() - start
            if number < params.rounds.more:
                _keep(tower, folder)
        ndcg = measure(f"round {number} on dev" if number else "teacher on dev")
        if number:
            report.append(_report_round(number, counts, base, before, ndcg))
    run.metric("training_seconds", seconds)
    return Rounds(report, ndcg, folders)


def checkpoint_folder(
    tower: nn.Module,
    triplets: Sequence[TextTriplet],
    positives: Positives,
    params: OnTriplets,
    of_round: str = "",
    code: Sequence[str] = _CODE,
) -> Path:
    """`keyed_folder` of a training on triplets. `code`: the modules that train."""
    knobs = params.model_dump(exclude={"dev_queries", "dev_documents", "checkpoint_steps"})
    queries = sorted({fold(triplet.query) for triplet in triplets})
    texts = chain(map(repr, map(astuple, triplets)), (repr(sorted(positives.get(query, ()))) for query in queries))
    sharded = "sharded" if is_sharded() else ""  # checkpoints of another kind
    return keyed_folder("teach", tower, texts, knobs, code, f"{of_round} {sharded}")


class _RoundRun(NullRun):
    def __init__(self, run: Run, number: int) -> None:
        self.run, self.number = run, number

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        self.run.metrics({f"round_{self.number}.{name}": value for name, value in values.items()}, step)


def _load(path: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _take_up(tower: SentenceTransformer, folder: Path) -> bool:
    path = folder / _TRAINED
    weights = load_checkpoint_or_none(path, _load, "teach")
    check_agreed(int(weights is not None), f"{folder}: {_SHARED}")
    if weights is None:
        return False
    tower.load_state_dict(weights)
    if rank() == 0:
        print(f"teach: takes the weights of a finished round from {path}", file=sys.stderr)
    return True


def _keep(tower: SentenceTransformer, folder: Path) -> None:
    if rank() == 0:
        with staged_file(folder / _TRAINED) as staging:
            torch.save(tower.state_dict(), staging)
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path)


def _next_triplets(
    tower: SentenceTransformer,
    triplets: list[TextTriplet],
    searched: SearchedCorpus,
    params: Contrastive,
    number: int,
    folder: Path,
) -> tuple[list[TextTriplet], dict[str, int]]:
    """The triplets with new negatives, of which rank 0 leaves rows in `folder`, and how many have one and have not."""
    path, scratch = folder / "negatives.npy", folder / "search"
    if rank() == 0 and load_checkpoint_or_none(path, np.load, "teach") is None:
        negatives = mine_negatives(tower, triplets, searched, params, number, scratch)
        with staged_file(path) as staging, staging.open("wb") as file:
            np.save(file, negatives)
        shutil.rmtree(scratch)
    barrier()
    if not path.is_file():
        raise UserError(f"{path}: {_SHARED}")
    rows = np.load(path)
    new = np.unique(rows[rows >= 0])
    documents = dict(zip(new.tolist(), zip(searched.texts(new), searched.ids(new), strict=True), strict=True))
    changed = []
    for triplet, row in zip(triplets, rows.tolist(), strict=True):
        negative, doc_id = documents.get(row, (triplet.negative, triplet.negative_id))
        luck = (triplet.luck - math.ceil(params.epochs) * triplet.chance) % 1  # turns go on
        changed.append(replace(triplet, negative=negative, negative_id=doc_id, luck=luck))
    count = int((rows >= 0).sum())
    return changed, {"new_negatives": count, "kept_negatives": len(rows) - count}


def _report_round(
    number: int,
    counts: dict[str, int],
    base: Mapping[str, float],
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> dict[str, Any]:
    report: dict[str, Any] = {"round": number, **counts, "comparison": None, "against_previous": None}
    message = (
        f"teach: round {number}: {counts['new_negatives']:,} of {sum(counts.values()):,} triplets have a new negative"
    )
    if after:
        against = compare(before, after)
        worse = compare(base=after, teacher=before)["teacher_beats_base"]  # the same test the other way round
        report["comparison"] = compare(base, after)
        previous, current = against["ndcg_base"], against["ndcg_teacher"]
        gain = {"ndcg_previous": previous, "ndcg_teacher": current, "p_value": against["p_value"]}
        report["against_previous"] = gain
        message += f"; nDCG@10 on {against['n']} dev queries {current:.4f}, before it {previous:.4f}"
        if worse:
            message += (
                f"; WARNING: worse than without this round; set rounds.more: {number - 1}, or change skip or margin"
            )
    if rank() == 0:
        print(message, file=sys.stderr)
    return report
