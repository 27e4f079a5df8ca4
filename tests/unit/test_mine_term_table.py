"""Importances from a table of term scores, and the table's file."""

import math
from pathlib import Path

import pytest

from steps.core.errors import UserError
from steps.mine.term_table import read_term_scores, shares, table_importances

SCORES = {"the": 0.5, "sum": 2.0, "axis": 5.5, "of": 0.0}


def test_importance_is_the_share_of_the_querys_scores() -> None:
    found = table_importances(["The sum of the axis", "sum?"], SCORES)
    assert found == [{"the": 0.5 / 8, "sum": 2 / 8, "of": 0.0, "axis": 5.5 / 8}, {"sum": 1.0}]
    assert math.fsum(found[0].values()) == 1


def test_a_term_that_the_table_lacks_counts_as_much_as_its_highest() -> None:
    assert table_importances(["sum of eigenvalues"], SCORES) == [{"sum": 2 / 7.5, "of": 0.0, "eigenvalues": 5.5 / 7.5}]


def test_terms_of_score_zero_share_equally_and_no_term_is_no_importance() -> None:
    assert table_importances(["of of", "of !", "?"], SCORES) == [{"of": 1.0}, {"of": 1.0}, {}]
    assert shares({"a": 0.0, "b": 0.0}) == {"a": 0.5, "b": 0.5}


def test_an_empty_table_is_an_error() -> None:
    with pytest.raises(UserError, match="empty"):
        table_importances(["sum"], {})


def test_the_file_gives_each_term_its_score(tmp_path: Path) -> None:
    path = tmp_path / "scores.tsv"
    path.write_text("été\t3\nsum\t0.25\nx1\t0\n", encoding="utf-8")
    assert read_term_scores(path) == {"été": 3.0, "sum": 0.25, "x1": 0.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("sum 2\n", "scores.tsv:1: 'sum 2' has no tab"),
        ("sum\t2\nSum\t2\n", "scores.tsv:2: 'Sum' is not one lower-case word"),
        ("heart attack\t2\n", "scores.tsv:1: 'heart attack' is not one"),
        ("\t2\n", "scores.tsv:1: '' is not one"),
        ("sum\t2\nsum\t3\n", "scores.tsv:2: the term 'sum' stands here for the second time"),
        ("sum\tmuch\n", "the score 'much' of 'sum'"),
        ("sum\t-1\n", "the score '-1' of 'sum'"),
        ("sum\tnan\n", "the score 'nan' of 'sum'"),
        ("", "holds no term"),
    ],
)
def test_a_broken_file_is_named_with_the_line_and_the_value(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "scores.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_term_scores(path)
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"scores\.tsv: cannot be read"):
        read_term_scores(tmp_path / "scores.tsv")
