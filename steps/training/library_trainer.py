"""What trainings by sentence-transformers' trainers share: whole checkpoints, a log, arguments, sharding."""

import copy
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from accelerate.utils import load_fsdp_model  # type: ignore[import-untyped]
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import BatchSampler
from transformers import PrinterCallback, TrainerCallback

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from steps.core.progress import progress
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import trains_with_plain_attention
from steps.training.checkpoint_files import acquire
from steps.training.distributed import agreed_step, barrier, rank, world
from steps.training.params import TripletTraining
from steps.training.triplets import Turns

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run

WARMUP_SHARE = 0.1  # of the steps, in which the learning rate rises from 0
DROPOUT = 0.0  # in every layer while training; on a CPU its random numbers cost a third of a step
STAGING = "staging"  # where a checkpoint is written before it gets its name
_FILES = "files.json"  # of a checkpoint: the size of each of its files
Tower = TypeVar("Tower", bound=SentenceTransformer)
_WEIGHTS = "trained.pt"  # of a checkpoint
_WRAPPED = "_checkpoint_wrapped_module."  # in names of weights whose activations are recomputed


def shared_arguments(knobs: TripletTraining, checkpoints: Path, batch_size: int) -> dict[str, Any]:
    """Arguments of the library's trainers: AdamW with linear decay, checkpoints below a folder."""
    return {
        "output_dir": str(checkpoints),
        "num_train_epochs": knobs.epochs,
        "per_device_train_batch_size": batch_size,
        "learning_rate": knobs.learning_rate,
        "warmup_steps": WARMUP_SHARE,  # below 1 it is a share of all steps
        "lr_scheduler_type": "linear",
        "bf16": resolve_precision(knobs.precision) == "bf16",
        "use_cpu": not torch.cuda.is_available(),
        "seed": knobs.seed,
        "data_seed": knobs.seed,
        "save_strategy": "steps",
        "save_steps": knobs.checkpoint_steps,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # by default the trainer hides a NaN loss behind the mean of the others
        "report_to": "none",
        "disable_tqdm": True,
    }


class WholeCheckpoints(BaseTrainer):
    """A trainer whose checkpoints appear whole, and whose epochs see the rows whose turn it is, if it has `turns`."""

    def __init__(self, *, model: Any, args: Any, turns: Turns, **named: Any) -> None:
        if args.n_gpu > 1:
            args._n_gpu = 1  # the library would multiply the batch by their number
        model.model_card_data.generate_widget_examples = False
        self.turns = turns
        super().__init__(model=model, args=args, **named)
        for callback in (self.model_card_callback_class, PrinterCallback):
            self.remove_callback(callback)

    def get_batch_sampler(self, dataset: Dataset, *_: Any, **named: Any) -> BatchSampler | None:
        """The library's sampler, of each epoch's own rows where not every row trains in every epoch."""
        make = super().get_batch_sampler
        if self.turns.every:
            return make(dataset, **named)
        return ByTurns(dataset, self.turns, math.ceil(self.args.num_train_epochs), make, **named)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint beside the others, then rename it: a kill leaves a whole one or none."""
        folder = Path(str(self.args.output_dir))
        self.args.output_dir = str(folder / STAGING)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.output_dir = str(folder)
        self.accelerator.wait_for_everyone()
        if rank() == 0:
            publish_checkpoint(folder, self.state.global_step)

    def train_on(self, checkpoints: Path, stage: str, precision: Precision, longest: int) -> None:
        """Train, from the newest checkpoint of a killed run, if any; wait while another run trains the same."""
        acquire(checkpoints, stage)
        if rank() == 0:
            shutil.rmtree(checkpoints / STAGING, ignore_errors=True)
            drop_damaged(checkpoints, stage)
        barrier()
        step = agreed_step(last_step(checkpoints), str(checkpoints))
        resume = checkpoints / f"checkpoint-{step}" if step else None
        if resume and rank() == 0:
            print(f"{stage}: continues from {resume}")
        model: Any = self.model
        set_dropout(model)
        with fast_attention(model, precision, longest):
            self.train(resume_from_checkpoint=str(resume) if resume else None)


class ByTurns(DefaultBatchSampler):
    """Batches, by the sampler that `make` makes, of rows whose turn it is; short epochs repeat a few to be as long."""

    def __init__(
        self, dataset: Dataset, turns: Turns, epochs: int, make: Callable[..., BatchSampler | None], **named: Any
    ) -> None:
        super().__init__(dataset, **named)
        self.dataset, self.turns, self.make, self.named = dataset, turns, make, named
        self.batches = -(-max(len(turns.rows(epoch)) for epoch in range(epochs)) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        rows, remaining = self.turns.rows(self.epoch), len(self)
        sampler: Any = self.make(self.dataset.select(rows), **self.named)
        sampler.set_epoch(self.epoch)
        if self.generator is not None:
            self.generator.manual_seed(self.seed + self.epoch)
        while remaining > 0:
            for batch in sampler:
                yield rows[batch].tolist()
                remaining -= 1

    def __len__(self) -> int:
        return self.batches


def last_step(folder: Path) -> int:
    """Step of the newest checkpoint below a folder, 0 without any."""
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*")), default=0)


def drop_damaged(folder: Path, stage: str) -> None:
    """Remove newest checkpoints of which a file is missing or cut, as after a power failure; a line says so."""
    while (step := last_step(folder)) and not _is_whole(newest := folder / f"checkpoint-{step}"):
        print(f"{stage}: {newest} cannot be read (a file is missing or cut); begins anew", file=sys.stderr)
        shutil.rmtree(newest)


def _is_whole(checkpoint: Path) -> bool:
    try:
        sizes: dict[str, int] = read_json(checkpoint / _FILES)
        return all((checkpoint / name).stat().st_size >= size for name, size in sizes.items())
    except (UserError, FileNotFoundError):
        return False


def publish_checkpoint(folder: Path, step: int) -> None:
    """Move the checkpoint of a step from the staging folder into `folder`, and drop the older ones."""
    name = f"checkpoint-{step}"
    staged = folder / STAGING / name
    sizes = {path.relative_to(staged).as_posix(): path.stat().st_size for path in staged.rglob("*") if path.is_file()}
    write_json(staged / _FILES, sizes)
    staged.rename(folder / name)
    for path in (folder / STAGING, *folder.glob("checkpoint-*")):
        if path.name != name:
            shutil.rmtree(path)


class LossLog(TrainerCallback):
    """Sends loss and learning rate of every step to the run, and stops at the first loss that is not finite."""

    def __init__(self, run: "Run", caption: str, section: str, remedy: str) -> None:
        """`caption` names the bar, `section` the knobs, and `remedy` what helps besides a lower learning rate."""
        self.run, self.caption, self.section, self.remedy = run, caption, section, remedy
        self.bar: Iterator[int] = iter(())
        self.loss = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        remaining = state.max_steps - state.global_step
        self.bar = progress(range(remaining), remaining, self.caption, lambda: self.loss, "steps")
        next(self.bar, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        next(self.bar, None)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **rest: Any) -> None:
        if not logs or "loss" not in logs:
            return
        self.loss = f"loss {logs['loss']:.3f}"
        if not math.isfinite(logs["loss"]):
            raise UserError(
                f"{self.section}: the loss is {logs['loss']} at step {state.global_step}; lower learning_rate"
                f" ({args.learning_rate:g}), {self.remedy}"
            )
        self.run.metrics({"loss": logs["loss"], "learning_rate": logs["learning_rate"]}, step=state.global_step)


def networks_of(model: nn.Module) -> list[Any]:
    """The transformers in a model of sentence-transformers."""
    return [module.auto_model for module in model.modules() if isinstance(module, Transformer)]


def set_dropout(model: nn.Module) -> None:
    """Set the dropout of every layer for this training; the saved configuration keeps the base's values."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT


@contextmanager
def fast_attention(model: nn.Module, precision: Precision, longest: int) -> Iterator[None]:
    """Train with the attention that is fastest for texts of at most `longest` tokens; both compute the same."""
    networks = networks_of(model)
    attentions = [network.config._attn_implementation for network in networks]
    if trains_with_plain_attention(precision, longest):
        for network in networks:
            network.set_attn_implementation("eager")
    yield
    for network, attention in zip(networks, attentions, strict=True):
        network.set_attn_implementation(attention)


def is_sharded() -> bool:
    """Whether accelerate was told to use FSDP or DeepSpeed."""
    return any(os.environ.get(f"ACCELERATE_USE_{name}", "").lower() == "true" for name in ("FSDP", "DEEPSPEED"))


@contextmanager
def to_train(tower: Tower) -> Iterator[Tower]:
    """The tower, to be trained in place; where training is sharded an fp32 copy, whose weights it takes at the end."""
    if not is_sharded():
        yield tower
        return
    device = tower.device
    copied = copy.deepcopy(tower.cpu())
    for network in networks_of(copied):
        if isinstance(pooler := getattr(network, "pooler", None), nn.Module):
            pooler.requires_grad_(False)  # nobody reads it, and a checkpoint's weights all have a state of AdamW's
    for weight in copied.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()  # what is sharded is the master copy, computed with in args.bf16
    yield copied
    take_weights(tower, copied)
    tower.to(device)


@torch.no_grad()
def take_weights(tower: nn.Module, trained: nn.Module) -> None:
    """Copy the weights of `trained` into `tower`, sharded ones whole; every process has to take part."""
    trained_weights = {name.replace(_WRAPPED, ""): weight for name, weight in trained.named_parameters()}
    for name, weight in tower.named_parameters():
        trained_weight = trained_weights[name]
        weight.copy_(trained_weight.full_tensor() if isinstance(trained_weight, DTensor) else trained_weight)


class ShardedTrainer(WholeCheckpoints):
    """A trainer of which `accelerate launch` spreads more than the texts over the processes (recipes/accelerate).

    FSDP shards weights, gradients and the optimizer's state, DeepSpeed's ZeRO-2 the last two. What trains is a copy:
    the tower itself stays whole in main memory, and gets the trained weights at the end.
    """

    def check_sharding(self) -> None:
        """UserError for FSDP or DeepSpeed where accelerate has none, and for FSDP otherwise than it is expected."""
        if not is_sharded():
            return
        if not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise UserError(
                "accelerate: FSDP and DeepSpeed need GPUs, which this machine has not; take recipes/accelerate/ddp.yaml"
            )
        if not self.is_fsdp_enabled:
            return
        plugin = self.accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2 or "FULL_STATE_DICT" not in str(plugin.state_dict_type):
            raise UserError(
                "accelerate: set fsdp_version: 2 and fsdp_state_dict_type: FULL_STATE_DICT, as"
                " recipes/accelerate/fsdp.yaml does: checkpoints are whole"
            )
        if not plugin.transformer_cls_names_to_wrap:
            plugin.transformer_cls_names_to_wrap = layer_classes(self.model)
        model: Any = self.model
        model.base_model_prefix = "0"  # accelerate looks for a final norm there; Normalize is none, and not sharded

    def pass_on(self, embeddings: Tensor, gradient: Tensor, last: bool) -> None:
        """Backward pass of a piece of a batch; what shards the model averages gradients over processes."""
        if self.is_deepspeed_enabled:
            share = (embeddings * gradient).sum() * world()
            self.accelerator.deepspeed_engine_wrapped.backward(share, sync_gradients=last)
        else:
            embeddings.backward(gradient * world())

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the weights that train; of a sharded model all lie, whole, beside the optimizer's state."""
        if self.is_fsdp_enabled or rank() > 0:
            return
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        torch.save(trained, folder / _WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            plugin = self.accelerator.state.fsdp_plugin
            load_fsdp_model(plugin, self.accelerator, self.model, resume_from_checkpoint)
            return
        trained = torch.load(Path(resume_from_checkpoint) / _WEIGHTS, map_location="cpu", weights_only=True)
        self.model.load_state_dict(trained, strict=False)


def layer_classes(model: nn.Module) -> list[str]:
    """Names of the classes of layers whose weights are gathered at once, as the model's networks name them."""
    named = set()
    for network in networks_of(model):
        there = {type(module).__name__ for module in network.modules()}
        named |= there & set(network._no_split_modules or [])
    return sorted(named)
