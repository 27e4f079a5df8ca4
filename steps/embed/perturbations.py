"""Queries as people mistype them, and in another case."""

import re
from math import hypot
from random import Random
from string import capwords

_LETTERS = re.compile(r"[^\W\d_]{4,}")  # shorter words are rarely mistyped, and seldom the same word afterwards
_EDITS = ("swap", "drop", "double", "neighbour")
_ROWS = (("qwertyuiop", 0.0), ("asdfghjkl", 0.25), ("zxcvbnm", 0.75))  # QWERTY, each row with its shift in keys
_KEYS = {key: (column + shift, row) for row, (keys, shift) in enumerate(_ROWS) for column, key in enumerate(keys)}
_NEIGHBOURS = {
    key: [neighbour for neighbour, (x, y) in _KEYS.items() if neighbour != key and hypot(x - column, y - row) < 1.3]
    for key, (column, row) in _KEYS.items()
}


def perturbed(text: str, rng: Random, case_share: float, *, uncased: bool = False) -> str:
    """The text with one or two typos or, with the chance `case_share`, in UPPER, Title or lower case.

    A typo swaps two neighbouring letters of a word of four letters or more, drops or doubles one, or hits a key beside
    it on a QWERTY keyboard. A text to which only the other of the two can be done gets that one, and one to which
    neither can comes back as it is. `uncased`: who reads it does not tell case apart, so that only typos change it.
    White space is collapsed; the number of words stays.
    """
    text = " ".join(text.split())
    cases = [] if uncased else [case for case in (text.upper(), capwords(text), text.lower()) if case != text]
    in_case = rng.random() < case_share
    if cases and (in_case or not _LETTERS.search(text)):
        return rng.choice(cases)
    return _mistyped(text, rng) if _LETTERS.search(text) else text


def _mistyped(text: str, rng: Random) -> str:
    """One or two edits that together change a text with a word of four letters or more."""
    edits = rng.randint(1, 2)
    changed = text
    while changed == text:
        for _ in range(edits):
            if words := list(_LETTERS.finditer(changed)):  # the first edit may have left three letters
                word = rng.choice(words)
                changed = changed[: word.start()] + _edited(word[0], rng) + changed[word.end() :]
    return changed


def _edited(word: str, rng: Random) -> str:
    """One edit; a swap of equal letters and a letter that is not on the keyboard leave the word as it is."""
    kind = rng.choice(_EDITS)
    if kind == "swap":
        at = rng.randrange(len(word) - 1)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    at = rng.randrange(len(word))
    letter = word[at]
    if kind == "drop":
        return word[:at] + word[at + 1 :]
    if kind == "double":
        return word[:at] + 2 * letter + word[at + 1 :]
    near = _NEIGHBOURS.get(letter.lower(), [letter])
    hit = rng.choice(near)
    return word[:at] + (hit.upper() if letter.isupper() else hit) + word[at + 1 :]
