"""A checkpoint that a power failure cut is begun anew, wherever it was cut."""

import os
from pathlib import Path

import pytest
import torch

from steps.distill.checkpoints import Checkpoints
from steps.training.kept import read_kept

MEGABYTE = 2**20


@pytest.mark.parametrize("left", [0, 1, 60, 4096, 16384, 32768, 65536, 131072, MEGABYTE])
def test_a_cut_file_is_none(tmp_path: Path, left: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.pt"
    torch.save({"weights": torch.zeros(MEGABYTE)}, path)
    os.truncate(path, left)
    assert Checkpoints(tmp_path)._read() is None
    assert read_kept(path, lambda file: torch.load(file, weights_only=True), "teach") is None
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" cannot be read (")[0] for line in said] == [f"distill: {path}", f"teach: {path}"]
