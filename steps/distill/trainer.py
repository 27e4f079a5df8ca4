"""The loop that trains a student on its objective."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.distill.checkpoints import Checkpoints, Done
from steps.distill.checks import explain_not_finite
from steps.distill.length import Counted, Length, UntilConverged
from steps.distill.mixture import epoch_rows
from steps.distill.objective import Objective
from steps.distill.params import DistillParams
from steps.distill.student import Student
from steps.distill.tokens import Tokens, length_batches
from steps.encoders.towers import autocast
from steps.training.distributed import broadcast, gather, micro_batch, rank, sum_over_ranks, world

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run

LOG_EVERY = 20  # steps


@dataclass(frozen=True)
class Alignment:
    """What a student learns from: tokens and teacher vectors of the same texts, and who may see which."""

    tokens: Tokens
    vectors: np.ndarray  # (texts, dim), memory-mapped
    parts: np.ndarray  # name of each text's part
    training: np.ndarray  # row numbers
    validation: np.ndarray


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a training goes; `name` is what its progress is called."""

    name: str
    epochs: float | Literal["auto"]
    batch_size: int
    learning_rate: float
    warmup_ratio: float
    weight_decay: float
    embedding_lr_multiplier: float  # of the learning rate of token embeddings
    prefix: str = ""  # of the metrics that it logs
    at_least_an_epoch: bool = True  # where epochs are auto


def train(
    student: Student,
    objective: Objective,
    data: Alignment,
    schedule: Schedule,
    params: DistillParams,
    run: "Run",
    checkpoints: Checkpoints,
) -> dict[str, float]:
    """Train in place; returns texts seen, steps, seconds, the final validation cosine, and how it ended.

    Dropout stays off: the targets are exact, so noise in the student only slows it. What a killed run left in
    `checkpoints` is continued. Processes share each batch and have equal weights at every step; rank 0 validates.
    UserError if the loss or a validation is not a finite number, or if one of the losses does not move the student.
    """
    trained = {"student": student.tower} | objective.modules
    weights = [weight for module in trained.values() for weight in module.parameters()]
    student.tower.eval()
    per_epoch = len(epoch_rows(data.training, data.parts, params.repeats, params.seed, 0))
    steps_of_epoch = math.ceil(per_epoch / schedule.batch_size)
    done = Done()
    epoch = steps_of_epoch if schedule.at_least_an_epoch else 0
    length: Length = UntilConverged(params.convergence, schedule.warmup_ratio, done, epoch)
    if schedule.epochs != "auto":
        length = Counted(max(1, math.ceil(schedule.epochs * steps_of_epoch)), schedule.warmup_ratio)
    optimizer = _optimizer(student, objective, schedule)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, length.factor)
    checkpoints.load(trained, optimizer, rate, done)
    baseline = mean_vector_cosine(data.vectors[data.validation])
    batches = islice(_batches(data, schedule, params, pads=student.pads), done.step, length.steps)
    seen = done.step + steps_of_epoch  # the step by which this process has seen each text
    meter = LossMeter(objective.names, data.vectors, set(done.moved), seen, resumed=bool(done.step))
    started = time.perf_counter() - done.seconds
    first, limits, figures = done.step, params.convergence, dict[str, float]()

    def so_far() -> str:
        parts = [f"{name} {value:.3g}" for name, value in figures.items()]
        if length.steps is None:
            parts.append(f"ends when the cosine stops rising, or at {limits.max_steps:,} steps")
        return ", ".join(parts)

    def log_validation() -> float:
        """Mean cosine on the held-out texts; the first process' value for all of them."""
        cosine = validate(student, data, params, done.step) if rank() == 0 else math.nan
        run.metric(f"{schedule.prefix}validation_cosine", cosine, step=done.step)
        [cosine] = broadcast([cosine])
        return cosine

    def remaining() -> int | None:
        return length.steps - first if length.steps else None

    for step, rows in enumerate(progress(batches, remaining, schedule.name, so_far, "steps"), start=first + 1):
        terms = _backward(student, objective, data, rows, params, step)
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        done.step, done.texts, done.seconds = step, done.texts + len(rows), time.perf_counter() - started
        meter.add(terms, rows)
        if length.should_validate(step):
            figures["held-out cosine"] = log_validation()
            length.record(step, (figures["held-out cosine"] - baseline) / (1 - baseline))
        last = step == length.steps
        if step % LOG_EVERY == 0 or last:
            logged = meter.close(step) | {"learning_rate": float(rate.get_last_lr()[0])}
            figures["loss"] = logged["train_loss"]
            run.metrics({schedule.prefix + name: value for name, value in logged.items()}, step=step)
            done.moved = sorted(meter.moved)
            meter.check_terms(step, last=last)
        if (checkpoints.due() or (rank() == 0 and last)) and bool(torch.isfinite(norm)):
            checkpoints.save(trained, optimizer, rate, done)
        if last:
            break
    cosine = log_validation()
    if done.rising:
        print(
            f"{schedule.name}: ended at its ceiling (distill.convergence.max_steps {limits.max_steps}) with a held-out"
            f" cosine of {cosine:.4f} that was still rising; raise the ceiling",
            file=sys.stderr,
        )
    return {
        "texts_seen": done.texts,
        "steps": done.step,
        "seconds": done.seconds,
        "validation_cosine": cosine,
        "still_rising": float(done.rising),
    }


def _backward(
    student: Student, objective: Objective, data: Alignment, rows: np.ndarray, params: DistillParams, step: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Gradients of the batch's loss; of each term the share that this process computed, and if it had a gradient.

    Each process reads its part of the rows, at most SLIMTOWER_MICRO_BATCH at once; gradients are summed. The terms meet
    in what the networks made of the texts: one backward pass through each network is enough, however many there are.
    The losses' heads lie behind it, and have their gradients at once.
    """
    behind = [weight for head in objective.heads.values() for weight in head.parameters()]
    local_rows = np.array_split(rows, world())[rank()]
    # With more processes than rows, an idle one still reads a row, and joins the sum with a gradient of 0.
    idle = not len(local_rows)
    local_rows = rows[:1] if idle else local_rows
    pieces = np.array_split(local_rows, -(-len(local_rows) // (micro_batch() or len(local_rows))))
    terms: dict[str, tuple[Tensor, Tensor]] = {}
    for piece in pieces:
        with autocast(params.precision):
            tensors = objective.forward(student, data.tokens, piece, rows, step)
        trained = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
        leaves = {name: tensor.detach().float().requires_grad_() for name, tensor in trained.items()}
        sums = [torch.zeros_like(leaf) for leaf in leaves.values()]
        for name, share in objective.terms(student, tensors | leaves, piece, rows, step).items():
            slopes = torch.autograd.grad(
                share * (not idle),
                [*leaves.values(), *behind],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            slopes, head_slopes = slopes[: len(leaves)], slopes[len(leaves) :]
            moves = torch.stack([slope.any() for slope in slopes]).any()
            for total, slope in zip(sums, slopes, strict=True):
                total += slope
            for weight, slope in zip(behind, head_slopes, strict=True):
                weight.grad = slope if weight.grad is None else weight.grad + slope
            value, moved = terms.get(name, (torch.zeros(()), torch.zeros((), dtype=torch.bool)))
            terms[name] = value.to(share.device) + share.detach() * (not idle), moved.to(share.device) | moves
        outputs = list(trained.values())
        torch.autograd.backward(outputs, [total.to(out.dtype) for total, out in zip(sums, outputs, strict=True)])
    for module in (student.tower, *objective.modules.values()):
        sum_over_ranks(module.parameters())
    return terms


@dataclass
class LossMeter:
    """The loss' terms since the last report, and which of them have `moved` the student, ever.

    `vectors` are the targets, in which the reason for a broken loss is looked for first. `resumed`: a killed run may
    not have told of its last steps. `seen`: the step by which each text was seen since.
    """

    names: Sequence[str]
    vectors: np.ndarray
    moved: set[str] = field(default_factory=set)
    seen: int = 0
    resumed: bool = False
    terms: list[dict[str, tuple[Tensor, Tensor]]] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)

    def add(self, terms: dict[str, tuple[Tensor, Tensor]], rows: np.ndarray) -> None:
        """Remember a step: this process' share of each term and whether it had a gradient, and the texts' rows."""
        self.terms.append(terms)
        self.rows.append(rows)

    def close(self, step: int) -> dict[str, float]:
        """Mean of the loss over the meter, and of each of several terms; UserError when it is not a finite number."""
        shares = torch.stack([torch.stack([terms[name][0] for name in self.names]) for terms in self.terms])
        means = gather(shares.float().mean(dim=0)[None]).sum(dim=0).tolist()
        loss = math.fsum(means)
        if not math.isfinite(loss):
            raise explain_not_finite("loss", loss, step, self.vectors[np.unique(np.concatenate(self.rows))])
        moved = torch.stack([torch.stack([terms[name][1] for name in self.names]) for terms in self.terms])
        ever = gather(moved.any(dim=0).float()[None]).sum(dim=0).tolist()
        self.moved |= {name for name, any_gradient in zip(self.names, ever, strict=True) if any_gradient}
        self.terms, self.rows = [], []
        several = dict(zip(self.names, means, strict=True)) if len(self.names) > 1 else {}
        return {"train_loss": loss} | {f"train_loss.{name}": value for name, value in several.items()}

    def check_terms(self, step: int, *, last: bool = False) -> None:
        """UserError for a term that had no gradient in any step, once each text was seen: it contributes nothing."""
        still = [name for name in self.names if name not in self.moved]
        if still and (step >= self.seen or (last and not self.resumed)):
            raise UserError(
                f"distill: the loss {', '.join(sorted(still))} gave no gradient in the {step} steps so far, so it"
                " contributes nothing; leave it out, or give it more to learn from: labels or a larger teacher_top_k"
                " where it compares scores, fewer layers than the teacher's where it compares embeddings"
            )


def _batches(data: Alignment, schedule: Schedule, params: DistillParams, *, pads: bool) -> Iterator[np.ndarray]:
    for epoch in count():
        rows = epoch_rows(data.training, data.parts, params.repeats, params.seed, epoch)
        if not len(rows):
            raise UserError(
                f"distill.repeats: an epoch of {', '.join(sorted(params.repeats))} has no text, of"
                f" {len(data.training)} that may train; give larger numbers, or raise score.max_texts"
            )
        lengths = data.tokens.lengths(rows) if pads else np.zeros(len(rows), dtype=np.int64)
        for positions in length_batches(lengths, schedule.batch_size, (params.seed, 3, epoch)):
            yield np.sort(rows[positions])


def _optimizer(student: Student, objective: Objective, schedule: Schedule) -> torch.optim.Optimizer:
    """AdamW; biases and norms are not decayed, nor are token embeddings, which have a learning rate of their own."""
    tokens = student.token_rows()
    modules = (student.tower, *objective.modules.values())
    trained = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
    weights = [weight for weight in trained if weight is not tokens]
    rate, decay = schedule.learning_rate, schedule.weight_decay
    groups = [
        {"params": [weight for weight in weights if weight.ndim > 1], "weight_decay": decay, "lr": rate},
        {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0, "lr": rate},
        {"params": [tokens], "weight_decay": 0.0, "lr": rate * schedule.embedding_lr_multiplier},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, fused=True)


def validate(student: Student, data: Alignment, params: DistillParams, step: int) -> float:
    """Mean cosine between student and teacher on the held-out texts; UserError when it is not a finite number."""
    targets = torch.from_numpy(np.asarray(data.vectors[data.validation], dtype=np.float32))
    embedded = torch.from_numpy(embed_held_out(student, data, params))
    mean = float(nn.functional.cosine_similarity(embedded, targets, dim=1).mean())
    if not math.isfinite(mean):
        raise explain_not_finite("cosine on held-out texts", mean, step, data.vectors[data.validation])
    return mean


def mean_vector_cosine(vectors: np.ndarray) -> float:
    """Mean cosine of `(n, dim)` vectors with their mean: what says nothing of a text has it already; below 1."""
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors.mean(axis=0))
    cosines = np.divide(vectors @ vectors.mean(axis=0), lengths, out=np.zeros(len(vectors)), where=lengths > 0)
    return min(float(cosines.mean()), 0.999)


def embed_held_out(student: Student, data: Alignment, params: DistillParams) -> np.ndarray:
    """The student's embeddings of the held-out texts, float32 `(texts, dim)`, read in order of length."""
    by_length = np.argsort(data.tokens.lengths(data.validation), kind="stable")
    chunks: list[np.ndarray] = []
    with torch.inference_mode(), autocast(params.precision):
        for start in range(0, len(by_length), 128):
            rows = data.validation[by_length[start : start + 128]]
            chunks.append(student.embed(data.tokens, rows).float().cpu().numpy())
    embedded = np.concatenate(chunks)
    return embedded[np.argsort(by_length)]
