"""Started twice by torchrun, with FSDP's variables set: trains the tiny teachers of a folder, their weights sharded."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import accelerate.state as accelerate_state
from accelerate.utils import DistributedType
from llm_fakes import LLM_PARAMS
from teach_fakes import EVERYTHING, PARAMS
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

import steps.teach.contrastive_training as contrastive_training
from slimtower.common.files import write_json
from steps.teach.kinds.base import Contrastive, LoraParams
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun
from steps.training.distributed import barrier, join_processes, rank

LORA = LoraParams(rank=2, target_modules=["q_proj", "v_proj"])
LOW_RANK = LLM_PARAMS.model_copy(update={"lora": LORA, "gradient_checkpointing": True})


def shard_without_gpus() -> None:
    """Let accelerate take processes on CPUs for ones on accelerators, or it would not shard."""
    plain = accelerate_state.PartialState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_XPU

    accelerate_state.PartialState.__init__ = init


class Killer(contrastive_training.LossLog, TrainerCallback):
    """Ends the training at its fourth step, which has a checkpoint of its second, and keeps what is there."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        """Called after each step."""
        if state.global_step == 4:
            if rank() == 0:
                world = Path(sys.argv[1])
                shutil.copytree(Path(args.output_dir) / "checkpoint-2", world / "checkpoint")
                shapes = {
                    name: [weight.numel(), weight.to_local().numel() if isinstance(weight, DTensor) else weight.numel()]
                    for name, weight in model.named_parameters()
                }
                write_json(world / "held.json", shapes)
            raise KeyboardInterrupt


def main(world: Path) -> None:
    """Write `sharded`, `resumed`, `pieces`, `everything`, `llm/sharded` and `llm/low_rank` below `world`."""
    shard_without_gpus()

    def train(contrastive: Contrastive, name: str, base: str = "model/tower", of: Path = world) -> None:
        params = contrastive.model_copy(update={"base": str(of / base)})
        teach(of / "ingest", of / "mine", of / name, params, NullRun())
        barrier()

    with join_processes():
        train(PARAMS, "sharded")
        log = contrastive_training.LossLog
        contrastive_training.LossLog = Killer  # type: ignore[misc]
        try:
            train(PARAMS, "resumed")
        except KeyboardInterrupt:
            barrier()
        contrastive_training.LossLog = log  # type: ignore[misc]
        train(PARAMS, "resumed")
        os.environ["SLIMTOWER_MICRO_BATCH"] = "3"
        train(PARAMS, "pieces")
        del os.environ["SLIMTOWER_MICRO_BATCH"]
        train(EVERYTHING, "everything")
        train(LLM_PARAMS, "sharded", "base", world / "llm")
        train(LOW_RANK, "low_rank", "base", world / "llm")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
