"""A run in which `embed` is done, with folders of its own for teachers and scores."""

from pathlib import Path

import pytest


@pytest.fixture
def linked(embedded: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("ingest", "embed"):
        (tmp_path / "data" / name).symlink_to(embedded / "data" / name)
    return tmp_path
