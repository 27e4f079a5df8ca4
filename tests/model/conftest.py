"""Releases of a tiny teacher's students, made once for all tests that only read them."""

from pathlib import Path

import pytest
from stages import distill_params, run_distill, run_embed, run_release


@pytest.fixture(scope="session")
def released(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder in which `static` and `2l` are distilled and released; to be copied, not changed."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
        run_embed(folder, tiny_tower)
        for student in ("static", "2l"):
            run_distill(folder, student, distill_params())
            run_release(folder, student)
    return folder
