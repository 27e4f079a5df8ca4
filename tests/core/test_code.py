"""Code as what a result was computed by: a module, and all that it imports of the project."""

from pathlib import Path

import pytest

from steps.core import code
from steps.core.code import closure, code_digest

FILES = {
    "steps/__init__.py": "",
    "steps/a/__init__.py": "",
    "steps/a/trains.py": """
from typing import TYPE_CHECKING
import numpy
import steps.a.direct
from steps.a import of_package
if TYPE_CHECKING:
    from steps.a.types import Name
def late():
    from steps.a.within import value
""",
    "steps/a/direct.py": "from steps.b.indirect import value\n",
    "steps/a/of_package.py": "from steps.a import trains\n",  # back again
    "steps/a/types.py": "Name = str\n",
    "steps/a/within.py": "value = 1\n",
    "steps/b/indirect.py": "value = 2\n",
    "steps/b/other.py": "from steps.a import trains\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code, "_ROOT", tmp_path)
    code._imported.cache_clear()
    yield tmp_path
    code._imported.cache_clear()


def test_imports_are_followed_but_those_for_type_checkers(project: Path) -> None:
    names = {"trains", "direct", "of_package", "within"}
    assert closure("steps.a.trains") == {"steps.a", "steps.b.indirect", *(f"steps.a.{name}" for name in names)}
    assert closure("steps.a.within", "steps.b.indirect") == {"steps.a.within", "steps.b.indirect"}


@pytest.mark.parametrize("name", FILES)
def test_a_digest_changes_with_what_is_imported_and_with_nothing_else(project: Path, name: str) -> None:
    before = code_digest("steps.a.trains")
    (project / name).write_text(FILES[name] + "# another\n")
    imported = name not in {"steps/__init__.py", "steps/a/types.py", "steps/b/other.py"}
    assert (code_digest("steps.a.trains") != before) == imported
    (project / "steps/a/same.py").write_text(FILES["steps/a/within.py"])
    assert code_digest("steps.a.same", "steps.a.direct") == code_digest("steps.a.direct", "steps.a.same")
    assert code_digest("steps.a.same") != code_digest("steps.a.within"), "of equal text"


def test_a_module_that_is_not_there_and_a_relative_import_are_defects(project: Path) -> None:
    with pytest.raises(ValueError, match=r"steps\.a\.gone: no module of this project"):
        code_digest("steps.a.gone")
    (project / "steps/a/near.py").write_text("\nfrom .within import value\n")
    with pytest.raises(ValueError, match=r"steps\.a\.near: line 2: a relative import"):
        code_digest("steps.a.near")


@pytest.mark.parametrize(
    "module",
    ["steps.distill.trainer", "steps.teach.contrastive_training", "steps.training.ranker", "steps.index.dataset"],
)
def test_a_checkpoint_outlives_changes_of_tracking_and_of_how_a_stage_starts(module: str) -> None:
    modules = closure(module)
    assert module in modules and not modules & {
        "steps.tracking.runs",
        "steps.frame.stage",
        "slimtower.registry.client",
        "steps.training.torchrun",
    }
    assert not any(name.startswith("pipeline") for name in modules)
