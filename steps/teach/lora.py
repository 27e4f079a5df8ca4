"""LoRA (Hu et al. 2021) through peft, which is an optional package."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from slimtower.common.errors import UserError, line
from steps.teach.kinds.contrastive import LoraParams

SCALE = 2  # what the product of the matrices is multiplied by: alpha / rank


@contextmanager
def low_rank(networks: Sequence[nn.Module], params: "LoraParams | None") -> Iterator[None]:
    """Freeze networks, in place, but for low-rank matrices in fp32; at the end these are merged. None = all trains.

    UserError without peft, and where a network has none of the target modules.
    """
    if params is None:
        yield
        return
    try:
        from peft import LoraConfig, LoraModel
    except ModuleNotFoundError:
        raise UserError("teach.teacher: lora needs peft; run `pip install peft`, or set lora: null") from None
    config = LoraConfig(r=params.rank, lora_alpha=SCALE * params.rank, target_modules=params.target_modules)
    try:
        adapted = [LoraModel(network, config, "default") for network in networks]
    except ValueError as error:
        raise UserError(f"teach.teacher: lora: {line(error)[:200]}") from None
    for weight in (weight for network in networks for weight in network.parameters() if weight.requires_grad):
        weight.data = weight.data.float()  # what is merged is rounded once
    yield
    for model in adapted:
        model.merge_and_unload()
        model.model.requires_grad_(True)
