"""Names that carry dates: which time they stand for, and which names carry none."""

import pytest

from steps.ingest.partitions import named_span
from steps.ingest.times import Window


@pytest.mark.parametrize(
    ("name", "first", "until"),
    [
        ("dt=2026-01-31/part-0.parquet", "2026-01-31", "2026-02-01"),
        ("logs/date=20260131/x.csv", "2026-01-31", "2026-02-01"),
        ("dt=2026-01-31T05/x.csv", "2026-01-31", "2026-02-01"),
        ("dt=2026-12/", "2026-12-01", "2027-01-01"),
        ("year=2026/", "2026-01-01", "2027-01-01"),
        ("year=2026/month=2/", "2026-02-01", "2026-03-01"),
        ("year=2024/month=02/day=29/x.jsonl", "2024-02-29", "2024-03-01"),
        ("a/2026/01/", "2026-01-01", "2026-02-01"),
        ("2026/01/31/x.jsonl", "2026-01-31", "2026-02-01"),
        ("2026-01-31/x.jsonl", "2026-01-31", "2026-02-01"),
        ("log-2026-01-31.parquet", "2026-01-31", "2026-02-01"),
        ("logstash-2026.01.31.jsonl.gz", "2026-01-31", "2026-02-01"),
        ("a/20260131.tsv", "2026-01-31", "2026-02-01"),
        ("2026/01/log-20260131T0500.jsonl", "2026-01-31", "2026-02-01"),  # a month's folder, narrowed by the file
        ("log-2026-01-01_2026-01-31.csv", "2026-01-01", "2026-02-01"),  # from the first to the last
        ("dt=2026-01-31/written-2026-02-01.csv", "2026-01-31", "2026-02-01"),  # the partition, not the time of writing
    ],
)
def test_names_that_carry_dates(name: str, first: str, until: str) -> None:
    span = named_span(name)
    assert span == Window.of(first, until)


@pytest.mark.parametrize(
    "name",
    [
        "corpus.jsonl",
        "part-00012.parquet",
        "dt=2026-02-30/x.csv",
        "dt=__HIVE_DEFAULT_PARTITION__/x.csv",
        "20260131050000.csv",
        "part-00001-0b1c2d3e-4f50-4162-8a20-a20190412b0c.snappy.parquet",
        "snapshot=2026-03-01/x.csv",
        "export-2026-03-01/x.csv",
        "1769817600.csv",
        "dt=9999-12-31/x.csv",  # its end lies behind the calendar
        "year=9999/",
        "0000/01/01/x.csv",
    ],
)
def test_names_that_carry_none_are_always_read(name: str) -> None:
    assert named_span(name) is None


def test_nothing_below_a_folder_lies_outside_of_the_folders_span() -> None:
    names = ["2026-03-01/dt=2026-01-31/x-2026-05-01.csv", "year=2026/month=01/day=31/2025/x", "2026/01/31/20260201.csv"]
    for name in names:
        span_of_name = named_span(name)
        folders = [name[: at + 1] for at, letter in enumerate(name) if letter == "/"]
        spans = [span for folder in folders if (span := named_span(folder))]
        assert span_of_name and spans
        assert all(span_of_name.within(span) for span in spans)


def test_a_window_is_in_utc() -> None:
    assert Window.of("2026-02-01T01:00+02:00", "") == Window.of("2026-01-31T23:00", "")
