"""`python -m steps.evaluate --table`: a table is made once for each evaluation."""

from pathlib import Path

import pytest

from steps.evaluate import __main__ as command
from steps.evaluate import summary


def test_a_table_is_made_anew_for_another_evaluation_alone(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = iter(["first", "second", "third"])
    monkeypatch.setattr(summary, "results_table", lambda reports: next(tables))
    Path("reports").mkdir()
    outputs = []
    for metrics in ("{}", "{}", "{ }", "{}"):
        Path("reports/metrics.json").write_text(metrics)
        command.print_table()
        outputs.append(capsys.readouterr().out)
    [kept_table] = {path for path in own_cache.glob("tables/*") if path.read_text() == "second"}
    kept_table.write_text("")  # as a full disk leaves it
    Path("reports/metrics.json").write_text("{ }")
    command.print_table()
    assert capsys.readouterr().out == "third\n"
    assert outputs == ["first\n", "first\n", "second\n", "first\n"]
