"""Checkpoints of the library's trainers appear whole."""

from pathlib import Path

from steps.training.library_trainer import last_step, publish_checkpoint


def test_the_newest_checkpoint_is_taken_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    for name in ("checkpoint-2", "checkpoint-10", "staging/checkpoint-12"):
        (tmp_path / name).mkdir(parents=True)
    assert last_step(tmp_path) == 10
    publish_checkpoint(tmp_path, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-12"]
    assert last_step(tmp_path / "nothing") == 0
