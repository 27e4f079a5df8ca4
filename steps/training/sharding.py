"""Trainings of which `accelerate launch` spreads more than the texts over the processes (recipes/accelerate).

FSDP shards weights, gradients and the optimizer's state (torch's `fully_shard`), DeepSpeed's ZeRO-2 the last two. What
trains is a copy: the tower itself stays whole in main memory, and gets the trained weights at the end.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import load_fsdp_model  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from slimtower.common.errors import UserError
from steps.training.distributed import rank, world
from steps.training.library_trainer import WholeCheckpoints, networks_of

Tower = TypeVar("Tower", bound=SentenceTransformer)
_WEIGHTS = "trained.pt"  # of a checkpoint
_WRAPPED = "_checkpoint_wrapped_module."  # in names of weights whose activations are recomputed


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
    """A trainer whose model accelerate may shard; to be named before the library's in a class of both."""

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
        """Backward pass of a piece of a batch; what shards the model averages gradients over the processes.

        `last`: of the batch's pieces.
        """
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
