"""What a version's page says."""

from pathlib import Path

import pytest

from slimtower.common.errors import UserError
from steps.promote.description import description, read_card
from steps.promote.gate import Decision


def test_verdict_checks_card_and_evaluation_within_what_the_database_keeps(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"report\.md: not found; run `dvc repro`"):
        read_card(tmp_path, tmp_path)
    (tmp_path / "README.md").write_text("---\nmetrics:\n- ndcg_at_10\n---\n\n# 2l\n\n| a | b |\n| --- | --- |\n")
    (tmp_path / "report.md").write_text("**2l** keeps 98 %.\n")
    card = read_card(tmp_path, tmp_path)
    assert card == "# 2l\n\n| a | b |\n| --- | --- |\n\n## Evaluation\n\n**2l** keeps 98 %."
    decision = Decision(False, ("loses on api",), ("fast enough",))
    told = description("retriever", "3", decision, card)
    assert told.startswith("**The gate: refused.**\n\n- no  loses on api\n- ok  fast enough\n\n")
    assert 'load_model("models:/retriever/3")' in told and told.endswith(card)
    long = description("retriever", "3", decision, "| row |\n" * 1000)
    assert 4900 < len(long) <= 5000 and long.endswith("| row |\n…")
