"""Importances from a table of term scores."""

import math

import pytest

from slimtower.common.errors import UserError
from steps.mine.term_table import shares, table_importances

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
