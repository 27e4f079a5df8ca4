"""Checkpoints of the library's trainers appear whole, and are taken up whole or not at all."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from steps.training.library_trainer import drop_damaged, last_step, publish_checkpoint


def test_the_newest_checkpoint_is_taken_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    for name in ("checkpoint-2", "checkpoint-10", "staging/checkpoint-12"):
        (tmp_path / name).mkdir(parents=True)
    assert last_step(tmp_path) == 10
    publish_checkpoint(tmp_path, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-12"]
    assert last_step(tmp_path / "nothing") == 0


def published(folder: Path, step: int) -> Path:
    staged = folder / f"staging/checkpoint-{step}"
    (staged / "0_Transformer").mkdir(parents=True)
    for name in ("trainer_state.json", "optimizer.pt", "0_Transformer/model.safetensors"):
        (staged / name).write_bytes(b"0123456789")
    publish_checkpoint(folder, step)
    return folder / f"checkpoint-{step}"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "optimizer.pt").unlink(),
        lambda path: shutil.rmtree(path / "0_Transformer"),
        lambda path: os.truncate(path / "0_Transformer/model.safetensors", 9),
        lambda path: os.truncate(path / "files.json", 9),
        lambda path: [file.unlink() for file in path.glob("*.*")],
    ],
)
def test_a_checkpoint_that_lacks_anything_is_told_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    checkpoint = published(tmp_path, 4)
    drop_damaged(tmp_path, "rank")
    assert (last_step(tmp_path), capsys.readouterr().err) == (4, "")
    damage(checkpoint)
    drop_damaged(tmp_path, "rank")
    assert (last_step(tmp_path), checkpoint.exists()) == (0, False)
    assert f"rank: {checkpoint} cannot be read (a file is missing or cut); begins anew\n" == capsys.readouterr().err


def test_half_of_an_older_checkpoint_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    published(tmp_path, 6)
    (tmp_path / "checkpoint-4").mkdir()
    drop_damaged(tmp_path, "teach")
    assert last_step(tmp_path) == 6
