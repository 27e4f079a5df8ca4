"""Typos and case: what one edit may do, and nothing else."""

from collections import Counter
from random import Random

import pytest

from steps.embed.derived_texts import perturbed

# What lies beside each key of a QWERTY keyboard, written down by hand.
BESIDE = {
    "q": "wa", "w": "qeas", "e": "wrsd", "r": "etdf", "t": "ryfg", "y": "tugh", "u": "yihj", "i": "uojk",
    "o": "ipkl", "p": "ol", "a": "qwsz", "s": "weadzx", "d": "ersfxc", "f": "rtdgcv", "g": "tyfhvb", "h": "yugjbn",
    "j": "uihknm", "k": "iojlm", "l": "opk", "z": "asx", "x": "sdzc", "c": "dfxv", "v": "fgcb", "b": "ghvn",
    "n": "hjbm", "m": "jkn",
}  # fmt: skip
TEXT = "how to merge two data frames by index"


def edits_of(word: str) -> set[str]:
    """Every result of one edit."""
    edits = set()
    for at, letter in enumerate(word):
        edits |= {word[:at] + word[at + 1 :], word[:at] + letter + word[at:]}
        edits |= {word[:at] + near + word[at + 1 :] for near in BESIDE[letter]}
        if at:
            edits.add(word[: at - 1] + letter + word[at - 1] + word[at + 1 :])
    return edits - {word}


@pytest.mark.parametrize("word", ["gaps", "brick", "vexed"])
def test_a_typo_is_one_or_two_of_four_edits(word: str) -> None:
    typos = {perturbed(word, Random(seed), 0.0) for seed in range(3000)}
    once = edits_of(word)
    two_edits = {second for first in once if len(first) >= 4 for second in edits_of(first)}
    assert once <= typos <= (once | two_edits) - {word}
    assert typos - once


def test_short_words_digits_and_the_number_of_words_stay() -> None:
    text = "why is the sum of a 123456 x2y3z4w5 none"
    for seed in range(300):
        first, last = perturbed(text, Random(seed), 0.0).rsplit(" ", 1)
        assert first == "why is the sum of a 123456 x2y3z4w5"
        assert last != "none"


def test_case_share_of_the_texts_are_in_one_of_the_other_cases() -> None:
    variants = [perturbed(TEXT, Random(seed), 0.25) for seed in range(4000)]
    cases = Counter(text for text in variants if text.lower() == TEXT)
    assert set(cases) == {TEXT.upper(), "How To Merge Two Data Frames By Index"}  # it is in lower case already
    assert sum(cases.values()) / 4000 == pytest.approx(0.25, abs=0.02)
    assert cases[TEXT.upper()] / sum(cases.values()) == pytest.approx(0.5, abs=0.06)
    assert {perturbed("SumOf", Random(seed), 1.0) for seed in range(50)} == {"SUMOF", "Sumof", "sumof"}


def test_what_cannot_be_done_gives_way_to_what_can() -> None:
    assert perturbed("abs", Random(1), 0.0) in {"ABS", "Abs"}  # no word of four letters
    assert perturbed("データ検索", Random(1), 1.0) != "データ検索"  # no case
    assert perturbed("3 + 4", Random(1), 0.5) == "3 + 4"
    assert perturbed("", Random(1), 0.5) == ""


def test_letters_off_the_keyboard_are_mistyped_otherwise() -> None:
    typos = {perturbed("größe", Random(seed), 0.0) for seed in range(300)}
    assert "größe" not in typos and {"grßöe", "grße", "größße"} <= typos


def test_for_an_uncased_reader_only_typos_are_made_and_the_same_ones() -> None:
    typos = [
        (perturbed(TEXT, Random(seed), 0.25), perturbed(TEXT, Random(seed), 0.25, uncased=True)) for seed in range(400)
    ]
    assert all(typo.lower() != TEXT for _, typo in typos)
    assert all(typo == before for before, typo in typos if before.lower() != TEXT)
    assert perturbed("abs", Random(1), 1.0, uncased=True) == "abs"
