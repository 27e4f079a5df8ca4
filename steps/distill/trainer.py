"""The loop that aligns a student with stored teacher embeddings. The teacher itself never runs here."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from steps.core.errors import UserError
from steps.core.params.distill import DistillParams, Schedule
from steps.core.progress import progress
from steps.core.ranks import gather, micro_batch, rank, sum_over_ranks, world
from steps.core.towers import autocast
from steps.core.tracking import Run
from steps.distill.checkpoints import Checkpoints
from steps.distill.checks import explain_no_number
from steps.distill.mixture import epoch_rows
from steps.distill.students import Student
from steps.distill.tokens import Tokens, length_batches

LOG_EVERY = 20  # steps
VALIDATIONS = 8  # over the whole training


@dataclass(frozen=True)
class Alignment:
    """What a student learns from: tokens and teacher vectors of the same texts, and who may see which."""

    tokens: Tokens
    vectors: np.ndarray  # (texts, dim), memory-mapped
    parts: np.ndarray  # name of each text's part
    training: np.ndarray  # row numbers
    validation: np.ndarray


def train(
    student: Student,
    loss: nn.Module,
    data: Alignment,
    schedule: Schedule,
    params: DistillParams,
    run: Run,
    checkpoints: Checkpoints,
) -> dict[str, float]:
    """Train in place; returns texts seen, seconds, texts per second and the final validation cosine.

    Dropout stays off: the targets are exact, so noise in the student only slows it. What a killed run left in
    `checkpoints` is continued. Processes that torchrun started share each batch, and have equal weights at every step;
    rank 0 validates. UserError when the loss is no finite number, or does not move the student.
    """
    module = student.tower
    module.eval()
    per_epoch = len(epoch_rows(data.training, data.parts, params.mixture, params.seed, 0))
    steps = max(1, math.ceil(schedule.epochs * math.ceil(per_epoch / schedule.batch_size)))
    optimizer = _optimizer(module, schedule)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, _warmup_then_linear(steps, schedule.warmup_ratio))
    done = checkpoints.load(module, optimizer, rate)
    left = islice(_batches(data, schedule, params, steps), done.step, None)
    window = Window(schedule, data.vectors)
    started = time.perf_counter() - done.seconds
    for step, rows in enumerate(progress(left, steps - done.step, "distill"), start=done.step + 1):
        value = _backward(student, loss, data, rows, params)
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        done.step, done.texts = step, done.texts + len(rows)
        window.add(value, norm, rows)
        if step % LOG_EVERY == 0 or step == steps:
            run.metrics({"train_loss": window.close(step), "learning_rate": float(rate.get_last_lr()[0])}, step=step)
        if rank() == 0 and step % max(1, steps // VALIDATIONS) == 0 and step != steps:
            run.metric("validation_cosine", validate(student, data, params), step=step)
        if checkpoints.due() and step != steps and bool(torch.isfinite(norm)):
            done.seconds = time.perf_counter() - started
            checkpoints.save(module, optimizer, rate, done)
    seconds = time.perf_counter() - started
    cosine = validate(student, data, params) if rank() == 0 else math.nan
    run.metric("validation_cosine", cosine, step=steps)
    return {
        "texts_seen": done.texts,
        "steps": steps,
        "seconds": seconds,
        "texts_per_second": done.texts / seconds,
        "validation_cosine": cosine,
    }


def _backward(student: Student, loss: nn.Module, data: Alignment, rows: np.ndarray, params: DistillParams) -> Tensor:
    """Gradients of the mean loss of these rows' texts, and of it the share that this process has computed.

    Each process reads its part of the rows, at most SLIMTOWER_MICRO_BATCH at once; gradients are summed.
    """
    own = np.array_split(rows, world())[rank()]
    idle = not len(own)  # more processes than rows: reads one all the same, and joins the sum with a gradient of 0
    own = rows[:1] if idle else own
    pieces = np.array_split(own, -(-len(own) // (micro_batch() or len(own))))
    shares = []
    for piece in pieces:
        target = torch.from_numpy(np.asarray(data.vectors[piece], dtype=np.float32)).to(student.tower.device)
        with autocast(params.precision):
            embedded = student.embed(data.tokens, piece)
        share = loss(embedded, target) * (0.0 if idle else len(piece) / len(rows))
        share.backward()
        shares.append(share.detach())
    sum_over_ranks(student.tower.parameters())
    return torch.stack(shares).sum() if len(shares) > 1 else shares[0]


class Window:
    """Losses and gradients since the last report."""

    def __init__(self, schedule: Schedule, vectors: np.ndarray) -> None:
        """`vectors` are the targets, in which the reason for a broken loss is looked for first."""
        self.schedule, self.vectors = schedule, vectors
        self._clear()

    def _clear(self) -> None:
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.rows: list[np.ndarray] = []

    def add(self, loss: Tensor, norm: Tensor, rows: np.ndarray) -> None:
        """Remember a step: this process' share of the loss, the norm of the whole gradient, the texts' rows."""
        self.losses.append(loss)
        self.norms.append(norm)
        self.rows.append(rows)

    def close(self, step: int) -> float:
        """Mean loss of the window; UserError when it is no finite number, or when no step had a gradient."""
        mean = float(gather(torch.stack(self.losses).mean()[None]).sum())
        if not math.isfinite(mean):
            raise explain_no_number(mean, step, self.vectors[np.unique(np.concatenate(self.rows))])
        if not torch.stack(self.norms).any():
            raise UserError(
                f"distill: the loss {self.schedule.loss} is {mean:g} and gave no gradient in the {len(self.norms)}"
                f" steps up to {step}, so it contributes nothing; give the student fewer layers than the teacher's, or"
                " another loss"
            )
        self._clear()
        return mean


def _batches(data: Alignment, schedule: Schedule, params: DistillParams, steps: int) -> Iterator[np.ndarray]:
    """Batches of row numbers, epoch after epoch, until there were `steps` of them."""
    given, epoch = 0, 0
    while True:
        rows = epoch_rows(data.training, data.parts, params.mixture, params.seed, epoch)
        for positions in length_batches(data.tokens.lengths(rows), schedule.batch_size, (params.seed, 3, epoch)):
            if given == steps:
                return
            given += 1
            yield np.sort(rows[positions])
        epoch += 1


def _optimizer(module: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """AdamW; biases and norms are not decayed."""
    decay = getattr(schedule, "weight_decay", 0.0)
    matrices = [weight for weight in module.parameters() if weight.requires_grad and weight.ndim > 1]
    others = [weight for weight in module.parameters() if weight.requires_grad and weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=schedule.learning_rate, fused=True)


def _warmup_then_linear(steps: int, warmup_ratio: float):  # type: ignore[no-untyped-def]
    """Factor of the learning rate at a step: up to 1 over the warm-up, then down to 0."""
    warmup = max(1, round(steps * warmup_ratio))

    def factor(step: int) -> float:
        return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup + 1), 1.0)

    return factor


def validate(student: Student, data: Alignment, params: DistillParams) -> float:
    """Mean cosine between student and teacher on the held-out texts."""
    cosines = []
    with torch.inference_mode(), autocast(params.precision):
        for start in range(0, len(data.validation), 512):
            rows = data.validation[start : start + 512]
            target = torch.from_numpy(np.asarray(data.vectors[rows], dtype=np.float32)).to(student.tower.device)
            embedded = student.embed(data.tokens, rows).float()
            cosines.append(nn.functional.cosine_similarity(embedded, target, dim=1))
    return float(torch.cat(cosines).mean())
