"""The benchmark of ingest: both readers find the same, and what grows is told from two sizes each."""

from pathlib import Path

import pytest

from bench.ingest import by_pandas, by_stage, exponents, write_log


@pytest.mark.medium
def test_both_readers_write_equally_many_rows(tmp_path: Path) -> None:
    write_log(tmp_path, 20_000)
    rows = by_stage(tmp_path)
    assert rows == by_pandas(tmp_path)
    assert all(count > 0 for count in rows.values())


def test_an_exponent_of_each_step_between_two_sizes() -> None:
    lines = [
        {"impressions": size, "stage": {"seconds": seconds}} for size, seconds in ((10, 2), (100, 20), (1000, 2000))
    ]
    assert exponents("stage", lines) == pytest.approx([1.0, 2.0])
