"""Benchmarks of tests write records from any tree, committed or not."""

import pytest

from bench import machine


@pytest.fixture(autouse=True)
def _a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "c0ffee")
    monkeypatch.setattr(machine, "_begun", None)  # a test before may have begun a record, which names its own commit
