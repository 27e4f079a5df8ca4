"""Outputs appear whole or not at all."""

from pathlib import Path

import pytest

from steps.core.errors import UserError
from steps.core.files import read_json, staged_folder, write_json


def test_a_failed_block_leaves_the_old_folder_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staged_folder(target) as staging:
        (staging / "a").write_text("old")
    with pytest.raises(RuntimeError), staged_folder(target) as staging:
        (staging / "a").write_text("new")
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_success_replaces_all_of_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for name in ("a", "b"):
        with staged_folder(target) as staging:
            (staging / name).write_text(name)
    assert [path.name for path in target.iterdir()] == ["b"]


def test_json_is_equal_bytes_for_equal_content(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, "é"]})
    write_json(tmp_path / "b.json", {"a": [1.5, "é"], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.glob("*a.json*"))


def test_missing_and_broken_json_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.json: not found; run"):
        read_json(tmp_path / "x.json")
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(UserError, match=r"y\.json: not JSON"):
        read_json(tmp_path / "y.json")
