"""A small BART that trains in seconds."""

import pytest

from steps.generate import denoiser


@pytest.fixture(autouse=True)
def small_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"WIDTH": 64, "HEADS": 2, "VOCABULARY": 400, "BATCH_SIZE": 8, "LEARNING_RATE": 3e-3}
    for name, value in changes.items():
        monkeypatch.setattr(denoiser, name, value)
    monkeypatch.setattr(denoiser, "TEMPERATURE", 1.0)
