"""The file of unlabelled queries: its rows, and what keeps them out of training."""

import gzip
from pathlib import Path

import pytest

from slimtower.common.errors import UserError
from steps.ingest.locations import one_file
from steps.ingest.rejects import Rejects
from steps.ingest.run import read_unlabelled
from steps.ingest.source import Query
from steps.ingest.splits import without_evaluation_texts


def read_queries(path: Path, *, ratio: float = 1.0) -> tuple[list[Query], Rejects]:
    rejects = Rejects(ratio)
    return read_unlabelled(path, rejects), rejects


def test_one_and_two_columns_duplicates_and_defects(tmp_path: Path) -> None:
    path = tmp_path / "more.tsv.gz"
    rows = [
        b"web\tHow tall is K2?", b"how tall is k2", b"one column", b"web\t", b"a\tb\tc", b"web\t\xff",
        b"web\t" + b"word " * 201,
    ]  # fmt: skip
    path.write_bytes(gzip.compress(b"\r\n".join(rows)))
    queries, rejects = read_queries(path)
    assert [(query.text, query.split, query.dataset) for query in queries] == [
        ("How tall is K2?", "unlabelled", "unlabelled_queries"),
        ("one column", "unlabelled", "unlabelled_queries"),
    ]
    assert [(row.line, row.reason) for row in rejects.rows] == [
        (2, "duplicate_text"), (4, "empty_text"), (5, "too_many_columns"), (6, "invalid_utf8"), (7, "query_too_long"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["queries.jsonl.gz", "more.CSV", "none.tsv", "gone.tsv"])
def test_a_table_is_not_taken_for_lines_of_text_nor_a_file_without_any(tmp_path: Path, name: str) -> None:
    if name != "gone.tsv":
        (tmp_path / name).write_bytes(b"\n\n")
    with pytest.raises(UserError, match=r"ingest\.unlabelled_queries"):
        read_queries(one_file(str(tmp_path / name), "ingest.unlabelled_queries"))


def test_duplicates_do_not_count_against_the_limit_but_defects_do(tmp_path: Path) -> None:
    path = tmp_path / "more.tsv"
    path.write_bytes(b"same\n" * 50)
    assert len(read_queries(path, ratio=0.0)[1].rows) == 49
    path.write_bytes(b"same\n" * 50 + b"web\t\n")
    with pytest.raises(UserError, match=r"1 of 51 rows.*empty_text 1"):
        read_queries(path, ratio=0.01)


def test_evaluation_queries_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "more.tsv"
    path.write_text("web\tHow tall -- is K2\nweb\tsomething else\nweb\tWho wrote Faust?\n")
    queries, rejects = read_queries(path)
    test = Query("toy/q1", "toy", "how tall is k2?", "test", "toy/queries.jsonl", 1)
    everything = [test, *queries]
    remaining = without_evaluation_texts(everything, {"who wrote faust"}, rejects)
    assert [query.text for query in remaining] == ["how tall is k2?", "something else"]
    assert [(row.source, row.line, row.reason) for row in rejects.rows] == [
        ("unlabelled_queries/more.tsv", 1, "evaluation_query_text"),
        ("unlabelled_queries/more.tsv", 3, "evaluation_query_text"),
    ]
