"""What a log's times are read as."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from steps.ingest.rows import Defect
from steps.ingest.times import Window, unix_seconds, unix_time

EVENING = "2026-01-31T23:59"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (202601312359, EVENING),
        ("2026013123", "2026-01-31T23:00"),
        (20260131235900, EVENING),
        (20260131, "2026-01-31"),
        (date(2026, 1, 31), "2026-01-31"),
        (1769903940, EVENING),
        (1769903940000, EVENING),
        (1769903940.5, EVENING),
        (2026139999, "2034-03-16T16:39:59"),  # spells no month 13, so it counts seconds
        (946684800000, "2000-01-01"),
        (1712010112345.678, "2024-04-01T22:21:52"),  # Python reads a day of the year 1712, a sign and a time of it
        ("1712010112345.678", "2024-04-01T22:21:52"),
        ("1712010100123.0", "2024-04-01T22:21:40"),
        ("20260131.0", "2026-01-31"),
    ],
)
def test_digits_that_spell_a_time_are_that_and_others_count(value: Any, read: str) -> None:
    assert unix_seconds(value) == int(datetime.fromisoformat(read).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize("value", [202613, 2026, "20261301", "x", True, float("nan")])
def test_what_is_neither_is_a_bad_timestamp(value: Any) -> None:
    with pytest.raises(Defect, match="bad_timestamp"):
        unix_seconds(value)


def test_parts_of_a_second_count_where_the_order_does() -> None:
    for value in ("2026-01-31T23:59:00.250Z", 1769903940.25, 1769903940250):
        assert (unix_time(value), unix_seconds(value)) == (1769903940.25, 1769903940)


def test_a_window_that_ends_later() -> None:
    assert Window.of("2026-01-30", "2026-02-01").longer(86_400) == Window.of("2026-01-30", "2026-02-02T00:00:00+00:00")
    assert Window.of("2026-01-30", "").longer(86_400) == Window.of("2026-01-30", "")
    assert Window.of("", "9999-12-31").longer(86_400).holds(253_402_300_798)
