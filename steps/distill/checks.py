"""What would make a student learn the wrong thing silently: each check stops the run with the reason and the fix."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from slimtower.common.errors import UserError
from steps.core.tables import FILLER, Part
from steps.distill.losses.base import Loss, Need
from steps.distill.losses.score import ScoreLoss
from steps.distill.mixture import texts_an_epoch
from steps.distill.params import VECTORS_ALONE, Phase, StudentParams, wants_inside
from steps.distill.score_tables import ScoreTable
from steps.distill.student import Student
from steps.distill.tokens import Tokens
from steps.encoders.towers import positions_of
from steps.endpoint.module import Endpoint
from steps.retrieval.target_entropy import check_teacher_targets

LARGEST_GRAPH = 2**31 - 2**24  # bytes; a protobuf has 2 GiB at most


def check_size(tower: SentenceTransformer) -> None:
    """UserError for a student whose weights do not fit into the one file of an ONNX graph that a release holds."""
    size = sum(weight.numel() for weight in tower.parameters()) * 4
    if size > LARGEST_GRAPH:
        raise UserError(
            f"distill.student: it has {size / 4e6:.0f} million weights, {size / 2**30:.1f} GiB in fp32, and a release"
            f" holds at most {LARGEST_GRAPH / 2**30:.1f} GiB; take it off distill.students, or start from a smaller one"
        )


def check_temperatures(losses: Sequence[Loss], scores: Mapping[str, ScoreTable], count: int) -> None:
    """Warn if a teacher's scores of the `count` nearest documents are flat or one-hot at their loss' temperature."""
    for loss in losses:
        if not (isinstance(loss, ScoreLoss) and loss.of_shares and loss.teacher in scores):
            continue
        temperature = loss.teacher_temperature or loss.number
        figures = check_teacher_targets(scores[loss.teacher].sampled(count), temperature)
        if figures and (warning := figures.warning(loss.teacher)):
            print(f"distill: WARNING: {loss.kind}: {warning}", file=sys.stderr)


def check_endpoint(chosen: StudentParams, teacher: SentenceTransformer) -> None:
    """UserError when a student wants more of a teacher behind an API than vectors: layers, or to run or train it."""
    if not isinstance(teacher[0], Endpoint):
        return
    if need := wants_inside(chosen):
        raise UserError(f"distill.student: {need}, but the teacher {teacher[0].model.model} {VECTORS_ALONE}")


def check_student(student: Student, tokens: Tokens, dim: int, matryoshka: Sequence[int] = ()) -> None:
    """UserError for tokens without a row, other dimensions than the targets', and `matryoshka` ones not below these."""
    check_token_rows(student, tokens)
    with torch.inference_mode():
        student_dim = student.embed(tokens, np.arange(1)).shape[1]
    if student_dim != dim:
        raise UserError(
            f"distill.student: it embeds in {student_dim} dimensions, but its targets in data/embed have {dim}; let it"
            " end in the teacher's pooling, or in a projection to the teacher's dimension"
        )
    if wide := sorted({size for size in matryoshka if size >= dim}):
        raise UserError(f"distill.student: dims {wide} are not below the teacher's, {dim}; leave them out")


def check_document_tokens(student: Student, tokens: Tokens) -> None:
    """UserError when a symmetric student cannot read the documents' tokens."""
    check_token_rows(student, tokens)
    network: Any = student.tower[0].auto_model
    limit, longest = positions_of(network), int(np.diff(tokens.offsets).max())
    if limit is not None and longest > limit:
        raise UserError(
            f"distill.student: max_document_length: texts have up to {longest} tokens, the student reads {limit}; lower"
            " it"
        )


def check_token_rows(student: Student, tokens: Tokens) -> None:
    """UserError when the student has no row for a token."""
    first: Any = student.tower[0]
    table = first.embedding if isinstance(first, StaticEmbedding) else first.auto_model.get_input_embeddings()
    highest = int(tokens.ids.max())
    if highest >= table.num_embeddings:
        raise UserError(
            f"distill.student: its tokenizer gives token {highest}, but the model's vocabulary ends at"
            f" {table.num_embeddings - 1}; give the teacher's base (or the student's) a tokenizer and weights that"
            " belong together"
        )


def check_repeats(
    repeats: Mapping[Part, float],
    parts: np.ndarray,
    training: np.ndarray,
    counts: Mapping[str, Mapping[str, int]],
    required: Sequence[Part] = (),
) -> list[str]:
    """Parts of `repeats` of which no text trains: they are left out, and one line on stderr names them.

    UserError for such a part that is `required`, and when no part is left.
    `counts` are those of the stage `embed`. Nothing is said of the part that makes up for missing texts where none are.
    """
    absent: dict[Part, str] = {}
    unneeded = FILLER not in counts and FILLER not in required
    weighted = sorted(part for part, times in repeats.items() if times > 0 and not (unneeded and part == FILLER))
    for part in weighted:
        if part not in counts:
            absent[part] = "embed.parts does not name it"
        elif reason := _trains_nothing(repeats[part], int((parts[training] == part).sum()), counts[part]):
            absent[part] = reason
    if lacking := [part for part in required if part in absent]:
        raise UserError(
            f"distill.required_parts: {lacking[0]} must train, but {absent[lacking[0]]}; give such texts to ingest, or"
            " take it off the list"
        )
    if len(absent) == len(weighted):
        raise UserError(
            f"distill.repeats: no text is left to train on ({_listed(absent)}); give a number to parts that have texts"
        )
    if absent:
        print(f"distill: left out: {_listed(absent)}", file=sys.stderr)
    return sorted(absent)


def _trains_nothing(times: float, members: int, counts: Mapping[str, int]) -> str:
    """Why a part with `members` training texts adds none to an epoch; "" where it adds some."""
    if members:
        return "" if texts_an_epoch(times, members) else f"{times} of its {members} texts is not one text"
    if counts.get("kept", 0):
        return f"all of its {counts['kept']} texts validate"
    dropped = {"repeated": "repeat other texts", "evaluation_query": "are evaluation queries"}
    reasons = [f"{counts[reason]} {phrase}" for reason, phrase in dropped.items() if counts.get(reason, 0)]
    return f"of its texts {' and '.join(reasons)}" if reasons else "it has no texts"


def _listed(absent: Mapping[Part, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for part, reason in absent.items():
        by_reason.setdefault(reason, []).append(part)
    return "; ".join(f"{', '.join(named)} ({reason})" for reason, named in by_reason.items())


def check_candidates(phase: Phase, positives: Mapping[int, np.ndarray], training: np.ndarray) -> None:
    """UserError when a loss would compare nothing: no training text has a label, or there is no candidate at all."""
    labelled = sum(int(row) in positives for row in training)
    wanting = [loss.name for loss in phase.losses if loss.wants_labels]
    if wanting and not labelled:
        raise UserError(
            f"distill.student: {', '.join(wanting)} needs labels, but no training query among the alignment texts has a"
            " known positive; give train_queries to embed.parts and to distill.repeats, or set labels: source and"
            " teacher_top_k"
        )
    compared = [loss.name for loss in phase.needs(Need.SCORES)]
    if compared and not labelled and not phase.teacher_top_k:
        raise UserError(
            f"distill.student: {', '.join(compared)} has no candidate documents; set teacher_top_k to 1 or more"
        )


def explain_not_finite(quantity: str, value: float, step: int, targets: np.ndarray) -> UserError:
    """Why `quantity` may not be a finite number; `targets` `(texts, dim)` are those that it was computed from."""
    broken = int((~np.isfinite(targets)).any(axis=1).sum())
    if broken:
        return UserError(
            f"data/embed/alignment.npy: {broken} vectors of the texts up to step {step} are not finite, as float16"
            " (at most 65,504) or at all; set embed.precision: fp32, or give a teacher that normalises, and run `dvc"
            " repro embed` again"
        )
    return UserError(f"distill: the {quantity} is {value} at step {step}; lower the student's learning_rate")
