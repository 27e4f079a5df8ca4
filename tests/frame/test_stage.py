"""A stage's frame: what DVC reads of params and code when it ends is what it was made of."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from slimtower.common.settings import Strict
from steps.frame import stage as module
from steps.frame.stage import recorded_inputs, stage_main


class Knobs(Strict):
    depth: int
    students: list[str]
    student: dict[str, dict[str, int]]


KNOBS = {"depth": 3, "students": ["1l", "2l"], "student": {"1l": {"layers": 1}, "2l": {"layers": 2}}}


DVC = """
stages:
  distill:
    matrix: {student: "${distill.students}"}
    cmd: python -m steps.distill --student ${item.student}
    params: [distill.depth, "distill.student.${item.student}", teach.index, {images.lock: [cpu]}]
    deps: ["models/teach/${teach.index}/tower", steps/distill, "steps/losses/${teach.index}.py"]
    outs: ["models/distill/${item.student}"]
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage runs in a folder of one stage, untracked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setattr(module, "stage_run", lambda *_: pytest.MonkeyPatch.context())
    monkeypatch.setattr(module, "step_parser", lambda *_: Parser())
    for name in ("steps/distill/kinds", "steps/losses", "models/teach/own/tower"):
        Path(name).mkdir(parents=True)
    Path("steps/distill/kinds/plugged.py").write_text("depth = 1\n")  # imported by nobody by name
    Path("steps/losses/own.py").write_text("")
    Path("images.lock").write_text("cpu: a\naccelerated: b\n")
    Path("dvc.yaml").write_text(DVC)


class Parser:
    def parse_known_args(self) -> None: ...


def write(knobs: dict[str, object], index: str = "own") -> None:
    Path("params.yaml").write_text(yaml.safe_dump({"distill": knobs, "teach": {"index": index, "epochs": 1}}))


def ends(edit: Callable[[], object]) -> int:
    """The exit code of a cell during which something is edited."""
    write(KNOBS)
    try:
        stage_main("distill", Knobs, lambda params, run: edit() and None, "2l")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(
    ("edit", "input_name"),
    [
        (lambda: write(KNOBS), ""),
        (lambda: write(KNOBS | {"student": {"1l": {"layers": 4}, "2l": {"layers": 2}}, "students": ["2l"]}), ""),
        (lambda: Path("images.lock").write_text("cpu: a\naccelerated: c\n"), ""),
        (lambda: Path("models/teach/own/tower/x").write_text("of another stage"), ""),
        (lambda: write(KNOBS | {"student": {"2l": {"layers": 3}}}), "params.yaml: distill.student.2l"),
        (lambda: write(KNOBS | {"depth": 4}), "params.yaml: distill.depth"),
        (lambda: write(KNOBS, index="other"), "params.yaml: teach.index, steps/losses/own.py"),
        (lambda: Path("steps/distill/kinds/plugged.py").write_text("depth = 2\n"), "steps/distill"),
        (lambda: Path("steps/distill/kinds/plugged.py").rename("steps/distill/kinds/moved.py"), "steps/distill"),
        (lambda: Path("images.lock").write_text("cpu: c\n"), "images.lock: cpu"),
        (lambda: Path("steps/distill/.plugged.py.swp").write_text("an editor has it open"), ""),
        (lambda: Path("steps/distill/kinds/plugged.py~").write_text("as it was before"), ""),
    ],
)
def test_what_is_edited_meanwhile_is_not_recorded_with_what_was_made_before(
    edit: Callable[[], object], input_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(edit) == (3 if input_name else 0)
    message = capsys.readouterr().err
    assert f"distill@2l: {input_name} changed while it ran" in message if input_name else "changed" not in message


@pytest.mark.medium
def test_all_that_dvc_records_of_a_stage_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with Repo() as repo:
        stages = [stage for stage in repo.index.stages if not stage.frozen]
    assert len(stages) > 10
    for stage in stages:
        params, paths = set[str](), set[str]()
        for dep in stage.deps:
            param_keys = getattr(dep, "params", None)
            if param_keys is None:
                paths.add(str(dep.def_path))
            else:
                params |= {f"{dep.def_path}: {key}" for key in param_keys}
        name, _, cell = stage.addressing.partition("@")
        seen = recorded_inputs(name, cell or None)
        assert params <= seen.keys()
        assert {path for path in paths if not path.startswith(("data/", "models/"))} <= seen.keys()
        assert all(seen[path] for path in paths & seen.keys())
        assert {path for path in seen if ": " not in path} <= paths
