"""A leak is a training text that equals a dev or test query after folding, and it is refused in one form."""

import pytest

from slimtower.common.errors import UserError
from steps.core.leakage import check_leaks, evaluation_keys

QUERIES = [
    {"query_id": "d/q1", "text": "What is gout?", "split": "test"},
    {"query_id": "d/q2", "text": "one two three four", "split": "dev"},
    {"query_id": "d/q3", "text": "a training query", "split": "train"},
    {"query_id": "d/q4", "text": "?!", "split": "test"},
]


def test_only_texts_of_dev_and_test_queries_are_held_out_and_nothing_folds_to_a_leak() -> None:
    keys = evaluation_keys(QUERIES)
    assert keys == {"what is gout": "d/q1", "one two three four": "d/q2"}
    assert evaluation_keys(QUERIES, max_words=2) == keys | {"what is": "d/q1", "one two": "d/q2"}
    assert check_leaks([("a", "a training query"), ("a", "..."), ("b", "one two")], keys, "fix it") == 3


def test_leaks_are_counted_the_first_three_shown_and_the_remedy_told() -> None:
    texts = [("x.parquet", "WHAT is gout"), ("x.parquet", "harmless"), *[("y.parquet", "One, two, three, four!")] * 4]
    with pytest.raises(UserError) as caught:
        check_leaks(texts, evaluation_keys(QUERIES), "fix it")
    assert str(caught.value) == (
        "leak: 5 of 6 training texts equal a dev or test query (x.parquet: 'WHAT is gout' is d/q1;"
        " y.parquet: 'One, two, three, four!' is d/q2; y.parquet: 'One, two, three, four!' is d/q2); fix it"
    )
