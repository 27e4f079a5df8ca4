"""Small logs skip fewer ranks."""

import pytest

from steps.mine import from_judgements, from_relevance


@pytest.fixture(autouse=True)
def few_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_judgements, "SKIPPED", 1)
    monkeypatch.setattr(from_relevance, "SKIPPED", 2)
