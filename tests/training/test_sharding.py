"""Sharded training: two processes under FSDP train the teacher that one process does; accelerate's files are valid.

FSDP runs on CPUs here, over gloo; DeepSpeed does not, so of it only what our code tells its engine is tested.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sharded_processes
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from llm_fakes import LLM_PARAMS, write_llm, write_titled_world
from teach_fakes import EVERYTHING, PARAMS, write_tower, write_world
from torch import nn
from weights import assert_close_weights, weights_of

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.teach.contrastive_training import backward
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun
from steps.training.library_trainer import ShardedTrainer, is_sharded, to_train

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes/accelerate"
TOLERANCE = 1e-3  # of weights: sums in another order, and Adam divides small gradients by their own size


def launched(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Arguments of `accelerate launch` with a file of recipes/accelerate, as it understands them."""
    monkeypatch.setattr("os.environ", dict(os.environ))
    words = ["--config_file", str(RECIPES / f"{name}.yaml"), "--num_processes", "2", "-m", "steps.teach"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args([*words, "--teacher", "dense"]))
    return args


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with teachers trained by one process, and by two under FSDP as the recipe sets it."""
    world = tmp_path_factory.mktemp("sharded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(world / "cache"))
        base, llm = write_tower(world / "model"), write_llm(world / "llm/base")
        write_world(world)
        write_titled_world(world / "llm")
        for teacher_params, folder, tower, name in (
            (PARAMS, world, base, "one"),
            (EVERYTHING, world, base, "everything_one"),
            (LLM_PARAMS, world / "llm", llm, "one"),
            (sharded_processes.LOW_RANK, world / "llm", llm, "low_rank_one"),
        ):
            params = teacher_params.model_copy(update={"base": str(tower)})
            teach(folder / "ingest", folder / "mine", folder / name, params, NullRun())
        variables = prepare_multi_gpu_env(launched("fsdp", patch))
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
             sharded_processes.__file__, str(world)],
            env=variables | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=True, timeout=500,
        )  # fmt: skip
    return world


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("single", "two"),
    [("one", "sharded"), ("one", "pieces"), ("everything_one", "everything"), ("llm/one", "llm/sharded"),
     ("llm/low_rank_one", "llm/low_rank")],
)  # fmt: skip
def test_sharded_processes_train_the_same_teacher_as_one(trained: Path, single: str, two: str) -> None:
    assert_close_weights(weights_of(trained / two / "tower"), weights_of(trained / single / "tower"), TOLERANCE)
    before, after = (read_json(trained / name / "report.json") for name in (single, two))
    assert before["triplets"] == after["triplets"] and before["by_source"] == after["by_source"]
    for earlier, later in zip(before["rounds"], after["rounds"], strict=True):
        assert earlier["new_negatives"] == later["new_negatives"] > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_process_holds_its_share_a_checkpoint_the_whole_and_a_killed_training_goes_on(trained: Path) -> None:
    sizes = read_json(trained / "held.json")
    assert all(sharded <= 0.6 * all_of_it for all_of_it, sharded in sizes.values())
    saved = torch.load(trained / "checkpoint/pytorch_model_fsdp.bin", weights_only=True)
    assert {name: weight.numel() for name, weight in saved.items() if name in sizes} == {
        name: all_of_it for name, (all_of_it, _) in sizes.items()
    }
    undisturbed, resumed = weights_of(trained / "sharded"), weights_of(trained / "resumed")
    assert all(torch.equal(resumed[name], weight) for name, weight in undisturbed.items())


@pytest.mark.parametrize(("name", "kind"), [("ddp", "MULTI_GPU"), ("fsdp", "FSDP"), ("deepspeed_zero2", "DEEPSPEED")])
def test_accelerate_takes_the_file(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = RECIPES / f"{name}.yaml"
    config = load_config_from_file(str(path))  # refuses unknown keys
    assert config.distributed_type == DistributedType[kind] and config.num_processes == 8
    raw = yaml.safe_load(path.read_text())
    args = launched(name, monkeypatch)
    assert args.num_processes == 2 and args.training_script == "steps.teach"
    for key in ("fsdp_config", "deepspeed_config"):
        for knob, value in raw.get(key, {}).items():
            assert str(getattr(args, knob)) == str(value), "accelerate does not know it"


def test_the_file_of_fsdp_sets_the_plugin_as_our_trainer_expects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in prepare_multi_gpu_env(launched("fsdp", monkeypatch)).items():
        monkeypatch.setitem(os.environ, name, value)
    plugin = FullyShardedDataParallelPlugin()
    trainer = SimpleNamespace(
        is_fsdp_enabled=True,
        is_deepspeed_enabled=False,
        accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)),
        model=nn.Linear(2, 2),
    )
    assert is_sharded() and plugin.reshard_after_forward is True and not plugin.cpu_ram_efficient_loading
    ShardedTrainer.check_sharding(trainer)  # type: ignore[arg-type]
    plugin.fsdp_version = 1
    with pytest.raises(UserError, match=r"fsdp_version: 2 .*fsdp_state_dict_type: FULL_STATE_DICT"):
        ShardedTrainer.check_sharding(trainer)  # type: ignore[arg-type]
    trainer.is_fsdp_enabled = False
    with pytest.raises(UserError, match=r"recipes/accelerate/ddp\.yaml"):
        ShardedTrainer.check_sharding(trainer)  # type: ignore[arg-type]


class Engine:
    """Stands for DeepSpeed's: sums gradients, and notes where a batch ends."""

    def __init__(self) -> None:
        self.ends: list[bool] = []

    def backward(self, loss: torch.Tensor, sync_gradients: bool) -> None:
        """As accelerate's wrapper."""
        self.ends.append(sync_gradients)
        loss.backward()


class Doubled(nn.Module):
    """Embeds numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 3, dtype=torch.float64)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Their embeddings."""
        return {"sentence_embedding": self.linear(features["input_ids"].double()).tanh()}


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_deepspeeds_engine_gets_the_same_gradients_piece_by_piece(micro_batch: int | None) -> None:
    torch.manual_seed(0)
    model, engine = Doubled(), Engine()
    columns = [{"input_ids": torch.arange(5.0)[:, None] + 2 * column} for column in range(3)]
    accelerator = SimpleNamespace(deepspeed_engine_wrapped=engine)
    trainer = SimpleNamespace(is_deepspeed_enabled=True, accelerator=accelerator)

    def loss(embeddings: list[torch.Tensor]) -> torch.Tensor:
        return ((embeddings[0] @ embeddings[1].T).softmax(dim=1) * (embeddings[2] @ embeddings[0].T)).sum()

    backward(model, loss, columns, micro_batch)
    expected = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    backward(model, loss, columns, micro_batch, lambda *words: ShardedTrainer.pass_on(trainer, *words))  # type: ignore[arg-type]
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-12, atol=1e-14)
    assert engine.ends == ([True] if micro_batch is None else [False, False, True])


def test_a_tower_takes_the_weights_of_the_copy_that_trained_in_its_own_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tower(nn.Linear):
        device = torch.device("cpu")

    tower = Tower(2, 2).bfloat16()
    with to_train(tower) as trained:  # type: ignore[type-var]
        assert trained is tower
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    before = tower.weight.clone()
    with to_train(tower) as trained:  # type: ignore[type-var]
        assert trained.weight.dtype == torch.float32 and trained is not tower
        with torch.no_grad():
            trained.weight += 1.001
        assert torch.equal(tower.weight, before)
        expected = trained.weight.bfloat16()
    assert torch.equal(tower.weight, expected) and tower.weight.dtype == torch.bfloat16
