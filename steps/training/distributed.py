"""The processes that train one model together, and their sums; without torchrun there is one, rank 0 of 1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slimtower.common.errors import UserError
from steps.encoders.precision import device

BUCKET = 25_000_000  # gradient values summed in one call
PATIENCE = timedelta(hours=6)  # rank 0 also reads, evaluates and saves, while the others wait


def rank() -> int:
    """Number of this process among all that train together, from 0. Rank 0 alone writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def join_processes() -> Iterator[None]:
    """Meet the other processes that torchrun started: over NCCL on GPUs, a GPU each, else over gloo."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    sharded = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"  # gathers whole weights in main memory
    on_gpus = "cuda:nccl,cpu:gloo" if sharded else "nccl"
    dist.init_process_group(on_gpus if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def sum_over_ranks(parameters: Iterator[nn.Parameter]) -> None:
    """Replace each gradient by its sum over the processes, bucket by bucket; equal bits on every process."""
    if world() == 1:
        return
    bucket: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET:
                _sum(bucket)
                bucket = []
    _sum(bucket)


def _sum(gradients: list[Tensor]) -> None:
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def gather(rows: Tensor) -> Tensor:
    """Rows `(n, ...)` of every process, end to end in the order of ranks, without gradient; n is equal everywhere."""
    if world() == 1:
        return rows
    chunks = [torch.empty_like(rows) for _ in range(world())]
    dist.all_gather(chunks, rows.contiguous())
    return torch.cat(chunks)


def broadcast(numbers: list[float]) -> list[float]:
    """The numbers of rank 0, on every process."""
    first: list[float] = gather(torch.tensor([numbers], dtype=torch.float64, device=device()))[0].tolist()
    return first


def barrier() -> None:
    """Wait until every process is here, so that what rank 0 has written is there for all."""
    broadcast([0.0])


def check_agreed(number: int, complaint: str) -> None:
    """UserError with the complaint when the processes have different numbers."""
    numbers = gather(torch.tensor([number], device=device())).tolist()
    if len(set(numbers)) > 1:
        raise UserError(complaint)


def agreed_step(step: int, where: str) -> int:
    """The training step that every process found a checkpoint of; UserError when they found different ones."""
    check_agreed(
        step,
        f"{where}: the hosts see checkpoints of different steps, one of them of {step}; let SLIMTOWER_CACHE be one"
        " volume that all of them mount",
    )
    return step


def micro_batch() -> int | None:
    """SLIMTOWER_MICRO_BATCH, how many texts a forward pass may read; None = all of a batch. UserError when mistyped."""
    value = os.environ.get("SLIMTOWER_MICRO_BATCH")
    if not value:
        return None
    if not value.isdigit() or int(value) < 1:
        raise UserError(f"SLIMTOWER_MICRO_BATCH is {value!r}; give a number of texts from 1, or unset it")
    return int(value)
