"""params.yaml: the tracked file is valid, and every mistake names its key, its value and the mend."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.params import Params, check_params, load_params
from steps.core.errors import UserError

TRACKED = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))


def changed(key: str, value: Any) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    *parents, last = key.split(".")
    section = raw
    for parent in parents:
        section = section[parent]
    if value is None:
        del section[last]
    else:
        section[last] = value
    return raw


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("distill.methd", "x", r"distill\.methd is unknown; did you mean distill\."),
        ("teach.epoch", 1, r"teach\.epoch is unknown; did you mean teach\.epochs\?"),
        ("teech", {}, r"teech is unknown; did you mean teach\?"),
        ("distill.student.2l.layer", [0], r"layer is unknown"),
        ("teach.batch_size", "32", r"teach\.batch_size is '32'"),
        ("teach.learning_rate", -1.0, r"teach\.learning_rate is -1\.0"),
        ("teach.epochs", None, r"teach\.epochs is missing; add it"),
        ("distill.students", ["2l", "9l"], r"students names \['9l'\]"),
        ("distill.mixture.poool", 1.0, r"distill\.mixture\.poool"),
    ],
)
def test_a_mistake_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_params(changed(key, value), "params.yaml")


def test_the_tracked_file_is_valid_and_each_section_is_a_stage() -> None:
    check_params(TRACKED, "params.yaml")
    stages = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert (
        set(stages) | {"promote"} == set(Params.model_fields) == set(TRACKED)
    )  # promotion moves aliases, makes no file
    assert all(Path("steps", stage, "__main__.py").is_file() for stage in stages)


def test_a_missing_or_broken_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not found"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("a: [")
    with pytest.raises(UserError, match="not YAML"):
        load_params(tmp_path / "params.yaml")
