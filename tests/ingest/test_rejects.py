"""Rejects stay small in memory, and their counts stay whole."""

import json
from collections.abc import Iterator

import pytest

from slimtower.common.errors import UserError
from steps.ingest import rejects as module
from steps.ingest.rejects import Rejects
from steps.ingest.rows import MissingTarget


def test_rows_left_out_by_rule_are_kept_up_to_a_limit_and_counted_all() -> None:
    rejects = Rejects(0.01)
    for source in ("log/queries/a", "log/queries/b"):
        for line in range(1, 2501):
            rejects.add(source, line, "empty_text", "x" * 9999, defect=False)
        rejects.add(source, 2501, "duplicate_id", "y", defect=False)
    assert len(rejects.rows) == 2 * (module.KEPT_OTHERS + 1)
    assert [row.line for row in rejects.rows[:2]] == [1, 2]
    report = rejects.report()
    assert report["empty_text"]["rows"] == 5000
    assert report["empty_text"]["kept"] == 2 * module.KEPT_OTHERS
    assert report["duplicate_id"]["rows"] == 2 and "kept" not in report["duplicate_id"]
    assert "xxx" not in json.dumps(report), "what people typed is shown to those who read the table alone"
    assert rejects.counts("log") == "duplicate_id 2, empty_text 5000"
    assert rejects.counts("log/queries/a") == "duplicate_id 1, empty_text 2500"
    assert rejects.counts("lo") == ""


def test_defects_are_counted_beyond_those_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_DEFECTS", 3)
    rejects = Rejects(0.5)
    for line in range(1, 11):
        rejects.count_rows("f")
        rejects.add("f", line, "bad_rank", "x")
    assert len(rejects.rows) == 3
    rejects.add("f", 11, "bad_id", "y")
    with pytest.raises(UserError, match=r"11 of 10 rows.*\(bad_id 1, bad_rank 10; line 1: .*line 3: ") as raised:
        rejects.check("f", "f.csv")
    assert "bad_id: " not in str(raised.value), "three examples"


def test_a_hopeless_file_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_BETWEEN_LOOKS", 100)
    rejects = Rejects(0.01)
    row_count = 0

    def rows(defects_of_ten: int) -> Iterator[int]:
        nonlocal row_count
        for row_count in range(1, 1001):
            rejects.count_rows("f")
            yield row_count
            if row_count % 10 < defects_of_ten:
                rejects.add("f", row_count, "bad_rank", "x")

    for _ in rejects.watched(rows(3), "f", "f.csv"):  # the check at the file's end decides
        pass
    assert row_count == 1000
    rejects = Rejects(0.01)
    with pytest.raises(UserError, match=r"f\.csv: .* of 1?\d\d rows cannot be used"):
        for _ in rejects.watched(rows(8), "f", "f.csv"):
            pass
    assert row_count == 100


def test_a_file_of_a_log_that_is_mostly_about_what_is_gone_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the log as a whole is not: a new catalogue whose ids the corpus does not have yet."""
    rejects = Rejects(0.01)
    for source, missing_rows in (("log/old", 3), ("log/new", 98)):
        for line in range(1, 101 if source == "log/new" else 201):
            rejects.count_rows(source)
            if line <= missing_rows:
                rejects.add_defect(source, line, MissingTarget("unknown_document"), "row")
    rejects.check_log(["log/old", "log/new"], "log")
    warning = capsys.readouterr().err
    assert "WARNING: most rows of 1 of 2 files of the log" in warning and "98 of 100 in log/new" in warning
    rejects.check_log(["log/old"], "log")
    assert not capsys.readouterr().err
    with pytest.raises(UserError, match="98 of 100 rows are about documents or searches that are not there"):
        rejects.check_log(["log/new"], "log")
