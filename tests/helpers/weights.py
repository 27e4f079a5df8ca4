"""Weights of trained models, and whether two trainings ended in the same ones."""

from pathlib import Path

import torch
from safetensors.torch import load_file


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight below a folder, by its file and name."""
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    return {f"{file.relative_to(folder)} {name}": weight for file in files for name, weight in load_file(file).items()}


def assert_close_weights(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    """Equal but for sums in another order."""
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        if not name.endswith(("key.bias", "k_proj.bias")):  # no gradient but rounding, which Adam makes steps of
            torch.testing.assert_close(weights[name], weight, rtol=0, atol=tolerance, msg=name)
