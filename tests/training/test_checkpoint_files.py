"""A checkpoint that a power failure cut is begun anew, wherever it was cut."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch

from steps.training.checkpoint_files import load_checkpoint_or_none

MEGABYTE = 2**20


@pytest.mark.parametrize("size", [0, 60, 4096, 131072, MEGABYTE])
def test_a_cut_file_is_none(tmp_path: Path, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.pt"
    torch.save({"weights": torch.zeros(MEGABYTE)}, path)
    os.truncate(path, size)
    assert load_checkpoint_or_none(path, lambda file: torch.load(file, weights_only=True), "teach") is None
    assert capsys.readouterr().err.startswith(f"teach: {path} cannot be read (") and not path.exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOMEM])
def test_a_file_that_the_system_cannot_read_now_is_kept(tmp_path: Path, number: int) -> None:
    path = tmp_path / "state.pt"
    path.touch()

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        load_checkpoint_or_none(path, refused, "teach")
    assert path.exists()
