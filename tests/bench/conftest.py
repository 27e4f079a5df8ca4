"""Benchmarks of tests write records from any tree, committed or not."""

import pytest


@pytest.fixture(autouse=True)
def _a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "c0ffee")
