"""What `bench.gpu` trains: the recipe's teachers, and language models of a shape that the stage can load."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu
from steps.encoders.towers import route
from steps.teach.llm_tower import llm_tower

pytestmark = pytest.mark.medium


def test_teachers_are_the_recipes(tmp_path: Path) -> None:
    teachers: dict[str, Any] = gpu.teachers(tmp_path, ["0.5B", "1.5B"], steps=4)
    full, low_rank = (teachers[f"llm_dual_encoder.0.5B.{way}"] for way in ("whole", "lora"))
    assert [name for name in teachers if name.startswith("llm")][2:] == ["llm_dual_encoder.1.5B.lora"]
    assert full.lora is None and low_rank.lora.rank == 16 and low_rank.gradient_checkpointing
    assert low_rank.base == str(tmp_path / "0.5B") and low_rank.max_triplets == 4 * low_rank.batch_size
    assert {teachers[name].kind for name in teachers} == {
        "llm_dual_encoder", "dual_encoder", "late_interaction", "cross_encoder",
    }  # fmt: skip


def test_a_language_model_has_its_shape_and_makes_towers(tmp_path: Path) -> None:
    gpu.write_language_model(tmp_path, gpu.Shape(3, 32, 64, 2, 1, 500), ["cumulative sum along an axis", "sum of sums"])
    network = route(llm_tower(str(tmp_path), 8, seed=1), "document")[0].auto_model
    assert network.dtype == torch.bfloat16 and len(network.layers) == 3
    config = network.config
    assert (config.hidden_size, config.intermediate_size, config.num_key_value_heads) == (32, 64, 1)
