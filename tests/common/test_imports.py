"""What is imported stays, and is not searched for garbage."""

import gc
import sys
from pathlib import Path

import pytest

from slimtower.common.imports import uncollected_imports


def test_nothing_is_collected_while_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_once.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    frozen = gc.get_freeze_count()
    with uncollected_imports():
        import imported_once
    assert not imported_once.COLLECTS and gc.isenabled()
    assert gc.get_freeze_count() > frozen
    monkeypatch.delitem(sys.modules, "imported_once")
    frozen = gc.get_freeze_count()
    with pytest.raises(ModuleNotFoundError), uncollected_imports():
        import no_such_module  # noqa: F401
    assert gc.get_freeze_count() <= frozen and gc.isenabled()
