"""What a killed training needs to go on as if nothing had happened, below SLIMTOWER_CACHE."""

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slimtower.common.files import cache_root, staged_file
from steps.core.code import code_digest
from steps.core.leases import release_and_delete
from steps.core.versions import library_versions
from steps.distill.losses.base import Loss
from steps.training.checkpoint_files import acquire, load_checkpoint_or_none, model_key
from steps.training.distributed import agreed_step, check_agreed, rank

_UNLIKE = "the hosts begin with different students, texts or knobs; give all the same packages, params.yaml and inputs"
CHECKPOINT_SECONDS = 60.0  # between two checkpoints: what a killed run repeats at most, beside its start


@dataclass
class Done:
    """How far a training has come; the order of its texts follows from the step."""

    step: int = 0
    texts: int = 0
    seconds: float = 0.0
    moved: list[str] = field(default_factory=list)  # terms of the loss that have had a gradient
    seen: list[list[float]] = field(default_factory=list)  # step and cosine of each look at the held-out texts
    falls_from: int = 0  # the step at which the learning rate started to fall; 0 while it has not
    rising: bool = False  # whether it started to fall though the cosine was still rising


class Checkpoints:
    """The newest state of one training: weights, optimizer, schedule, random numbers and how far it has come."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved_at = folder, time.monotonic()

    def due(self) -> bool:
        """Whether it is time to save again; only ever for rank 0, whose state is everyone's."""
        return rank() == 0 and time.monotonic() - self.saved_at >= CHECKPOINT_SECONDS

    def save(self, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, rate: Any, done: Done) -> None:
        """Replace the checkpoint; a kill leaves the old one or the new one, whole."""
        state = {
            "weights": {name: module.state_dict() for name, module in modules.items()},
            "optimizer": optimizer.state_dict(),
            "rate": rate.state_dict(),
            "random": torch.get_rng_state(),
            "done": asdict(done),
        }
        with staged_file(self.folder / "state.pt") as staging:
            torch.save(state, staging)
        self.saved_at = time.monotonic()

    def load(self, modules: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer, rate: Any, done: Done) -> None:
        """Take up the state of a killed run, if there is a readable one; wait while another run trains the same."""
        acquire(self.folder, "distill")
        load_tensors = partial(torch.load, map_location="cpu", weights_only=True)
        state = load_checkpoint_or_none(self.folder / "state.pt", load_tensors, "distill")
        for name, value in (state["done"] if state else {}).items():
            setattr(done, name, value)
        agreed_step(done.step, str(self.folder))
        if state:
            for name, module in modules.items():
                module.load_state_dict(state["weights"][name])
            optimizer.load_state_dict(state["optimizer"])
            rate.load_state_dict(state["rate"])
            torch.set_rng_state(state["random"])
            if rank() == 0:
                print(f"distill: continues after step {done.step} from {self.folder}", file=sys.stderr)

    def remove(self) -> None:
        """Forget the training; call it when its student is written."""
        release_and_delete(self.folder)


def training_folder(
    module: nn.Module,
    arrays: dict[str, Any],
    knobs: dict[str, Any],
    losses: Iterable[Loss],
    teacher_code: Iterable[str] = (),
) -> Path:
    """Folder below SLIMTOWER_CACHE of trainings that are equal in all this; UserError if the processes differ in it.

    `teacher_code`: modules of teachers that run.
    """
    modules = {type(loss).__module__ for loss in losses} | set(teacher_code)  # nobody imports these by name
    code = code_digest("steps.distill.trainer", "steps.distill.objective", "steps.distill.joint", *modules)
    key = hashlib.sha256(json.dumps([knobs, code, library_versions()], sort_keys=True).encode())
    key.update(model_key(module))
    for name, array in sorted(arrays.items()):
        key.update(f"{name} {array.dtype} {array.shape}".encode())
        for start in range(0, len(array), 1_000_000):  # targets are memory-mapped: not all at once
            key.update(array[start : start + 1_000_000].tobytes())
    check_agreed(int(key.hexdigest()[:15], 16), _UNLIKE)
    return cache_root() / "distill" / key.hexdigest()[:32]
