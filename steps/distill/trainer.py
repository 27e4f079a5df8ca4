"""The loop that aligns a student with stored teacher embeddings. The teacher itself never runs here."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from steps.core.errors import UserError
from steps.core.params.distill import DistillParams, Schedule
from steps.core.progress import progress
from steps.core.towers import autocast
from steps.core.tracking import Run
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
    student: Student, loss: nn.Module, data: Alignment, schedule: Schedule, params: DistillParams, run: Run
) -> dict[str, float]:
    """Train in place; returns texts seen, seconds, texts per second and the final validation cosine.

    Dropout stays off: the targets are exact, so noise in the student only slows it. UserError when the loss is no
    finite number.
    """
    module = student.tower
    module.eval()
    per_epoch = len(epoch_rows(data.training, data.parts, params.mixture, params.seed, 0))
    steps = max(1, math.ceil(schedule.epochs * math.ceil(per_epoch / schedule.batch_size)))
    optimizer = _optimizer(module, schedule)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, _warmup_then_linear(steps, schedule.warmup_ratio))
    started, seen, losses = time.perf_counter(), 0, []
    for step, rows in enumerate(progress(_batches(data, schedule, params, steps), steps, "distill"), start=1):
        target = torch.from_numpy(np.asarray(data.vectors[rows], dtype=np.float32)).to(module.device)
        with autocast(params.precision):
            embedded = student.embed(data.tokens, rows)
        value = loss(embedded, target)
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        seen += len(rows)
        losses.append(value.detach())
        if step % LOG_EVERY == 0 or step == steps:
            run.metrics(
                {"train_loss": _finite_mean(losses, step), "learning_rate": float(rate.get_last_lr()[0])}, step=step
            )
            losses = []
        if step % max(1, steps // VALIDATIONS) == 0 and step != steps:
            run.metric("validation_cosine", validate(student, data, params), step=step)
    seconds = time.perf_counter() - started
    cosine = validate(student, data, params)
    run.metric("validation_cosine", cosine, step=steps)
    return {
        "texts_seen": seen,
        "steps": steps,
        "seconds": seconds,
        "texts_per_second": seen / seconds,
        "validation_cosine": cosine,
    }


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


def _finite_mean(losses: list[Tensor], step: int) -> float:
    """Mean loss since the last report; UserError when it is not a number."""
    mean = float(torch.stack(losses).mean())
    if not math.isfinite(mean):
        raise UserError(f"distill: the loss is {mean} at step {step}; lower the student's learning_rate")
    return mean


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
