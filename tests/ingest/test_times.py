"""What a log's times are read as."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from steps.ingest.rows import Defect
from steps.ingest.times import Window, unix_time

EVENING = "2026-01-31T23:59"
NOON = "2025-12-20T12:00:00"


@pytest.mark.parametrize(
    ("value", "iso"),
    [
        (202601312359, EVENING),
        ("2026013123", "2026-01-31T23:00"),
        (20260131235900, EVENING),
        (20260131, "2026-01-31"),
        (date(2026, 1, 31), "2026-01-31"),
        (1769903940.5, "2026-01-31T23:59:00.5"),
        (1769903940250, "2026-01-31T23:59:00.250"),
        ("2026-01-31T23:59:00.250Z", "2026-01-31T23:59:00.250"),
        (2026139999, "2034-03-16T16:39:59"),  # spells no month 13, so it counts seconds
        (946684800000, "2000-01-01"),
        (
            1712010112345.678,
            "2024-04-01T22:21:52.345678",
        ),  # Python reads a day of the year 1712, a sign and a time of it
        ("1712010112345.678", "2024-04-01T22:21:52.345678"),
        ("1712010100123.0", "2024-04-01T22:21:40.123"),
        ("20260131.0", "2026-01-31"),
        ("2025-12-20 12:00:00.000000 UTC", NOON),
        ("2025-12-20 12:00:00+00", NOON),
        ("2025-12-20t12:00:00z", NOON),
        ("2025-12-20T13:00:00+01:00[Europe/Berlin]", NOON),
        ("2025-12-20 13:00:00 Europe/Berlin", NOON),
        ("2025-12-20 07:00:00 EST", NOON),
        ("2025-12-20T12:00:00.000000001Z", NOON),
        ("2025-12-20 12:00:00,000", NOON),
        ("2025/12/20 12:00", NOON),
        ("Sat, 20 Dec 2025 13:00:00 +0100", NOON),
        ("20/Dec/2025:12:00:00 +0000", NOON),
        ("20-Dec-2025 12:00", NOON),
        ("Dec 20, 2025 @ 12:00:00.000", NOON),
        ("December 20, 2025, 12:00 PM", NOON),
        ("Sat Dec 20 12:00:00 UTC 2025", NOON),
        ("Sat Dec 20 2025 13:00:00 GMT+0100 (Central European Standard Time)", NOON),
        ("Dec 20, 2025 @ 12:30 AM", "2025-12-20T00:30"),
        ("20251220120000000", NOON),
        (1766232000, NOON),
        (1766232000_000, NOON),
        (1766232000_000_000_000, NOON),
        ("1766232000000000", NOON),
    ],
)
def test_times_that_can_be_read_in_one_way_are(value: Any, iso: str) -> None:
    moment = datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp()
    assert unix_time(value) == pytest.approx(moment, rel=0, abs=1e-6)


@pytest.mark.parametrize(
    "value",
    ["12/20/2025", "20/12/2025 12:00", "20.12.2025", "2025-12-20 12:00 CST", "2025-13-20 UTC", "Dec 2025", "13:00 PM",
     202613, 2026, "20261301", "20261312595912345", "x", True, float("nan")],
)  # fmt: skip
def test_times_that_can_be_read_in_two_ways_or_in_none_are_not(value: Any) -> None:
    with pytest.raises(Defect, match="bad_timestamp"):
        unix_time(value)


def test_a_form_is_tried_first() -> None:
    moment = datetime(2025, 10, 12, tzinfo=UTC).timestamp()
    assert unix_time("10/12/2025", "%m/%d/%Y") == unix_time("2025-10-12", "%m/%d/%Y") == moment
    assert unix_time("12/Oct/2025", "%d/%b/%Y") == moment


def test_a_window_that_ends_later() -> None:
    assert Window.of("2026-01-30", "2026-02-01").longer(86_400) == Window.of("2026-01-30", "2026-02-02T00:00:00+00:00")
    assert Window.of("2026-01-30", "").longer(86_400) == Window.of("2026-01-30", "")
    assert Window.of("", "9999-12-31").longer(86_400).holds(253_402_300_798)
