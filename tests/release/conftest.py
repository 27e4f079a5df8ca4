"""What the tests of `release` start from."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def unreleased(released: Path, tmp_path: Path) -> Path:
    """A copy of everything but the releases."""
    ignored = shutil.ignore_patterns("release", "cache")
    return Path(shutil.copytree(released, tmp_path / "unreleased", ignore=ignored))
