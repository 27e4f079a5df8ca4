"""Queries of one word: which documents they define, and which of them the corpus has as words."""

import pytest

from bench import one_word
from bench.disguise import Corpus
from bench.kinds import Pair
from bench.one_word import answers, groups_of

CORPUS = Corpus(
    [("d0", "", "A hound of the hunt."), ("d1", "", "To chase."), ("d2", "", "To run after.")],
    {"q0": "Bracket", "q1": "Stalk"},
    {"dev": [("q1", "d1", 1)], "test": [("q0", "d0", 1)]},
)
PAIRS = [
    Pair("", "A hound of the hunt.", "Bracket"),
    Pair("", "A hound of the hunt.", "Rach"),
    Pair("", "To chase.", "Hunt"),
    Pair("", "To run after.", "Hunt"),
    Pair("", "of another corpus", "Chase"),
]


def test_a_word_finds_all_that_it_defines_and_none_of_test_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_word, "KINDS", {one_word.KIND: (lambda: iter(PAIRS), 9)})
    documents = answers(CORPUS)
    assert documents == {"Rach": {"d0"}, "Hunt": {"d1", "d2"}}
    assert {name: mask.tolist() for name, mask in groups_of([*documents], CORPUS).items()} == {
        "words of the corpus": [False, True],
        "others": [True, False],
        "all": [True, True],
    }
