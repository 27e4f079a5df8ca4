"""Test queries as people also type them: with a slip, in another order, or not yet typed to the end."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from steps.core.judged import JudgedSet
from steps.core.texts import word_places

Perturbation = Literal["typos", "word_order", "prefix"]
PERTURBATIONS: tuple[Perturbation, ...] = ("typos", "word_order", "prefix")  # that test queries are measured under

_LONG = 4  # letters; a slip in a shorter word would often make another word
_TYPED = (0.5, 0.8)  # share of the characters that a prefix keeps


def perturbed_set(judged: JudgedSet, rows: np.ndarray, kind: Perturbation, seed: int) -> JudgedSet:
    """Some queries of a judged set with changed texts, by row; the change depends on query id, kind and seed alone."""
    ids = [judged.query_ids[row] for row in rows]
    texts = [
        perturb(judged.texts[row], kind, np.random.default_rng([seed, zlib.crc32(query.encode()), _ORDER[kind]]))
        for row, query in zip(rows, ids, strict=True)
    ]
    return replace(judged, query_ids=ids, texts=texts, qrels={query: judged.qrels[query] for query in ids})


def drawn_rows(count: int, limit: int, seed: int) -> np.ndarray:
    """Rows below `count`, ascending: all, or `limit` drawn alike where there are more."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:limit])


def perturb(text: str, kind: Perturbation, generator: np.random.Generator) -> str:
    """The changed text; as it was where nothing can be changed, such as the order of one word."""
    return _CHANGES[kind](text, generator)


def _typo(text: str, generator: np.random.Generator) -> str:
    """One letter of one word swapped with the next one, left out or doubled."""
    spans = [(start, end) for start, end in word_places(text) if end - start >= 2]
    spans = [(start, end) for start, end in spans if end - start >= _LONG] or spans
    if not spans:
        return text
    start, end = spans[generator.integers(len(spans))]
    slip = generator.integers(3)
    swaps = [at for at in range(start, end - 1) if text[at] != text[at + 1]]
    if slip == 0 and swaps:
        at = swaps[generator.integers(len(swaps))]
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    at = int(generator.integers(start, end))
    return text[:at] + text[at + 1 :] if slip == 1 else text[:at] + text[at] + text[at:]


def _word_order(text: str, generator: np.random.Generator) -> str:
    """Its words, as blanks part them, in another order."""
    tokens = text.split()
    if len(set(tokens)) < 2:
        return text
    while (shuffled := [tokens[at] for at in generator.permutation(len(tokens))]) == tokens:
        pass
    return " ".join(shuffled)


def _prefix(text: str, generator: np.random.Generator) -> str:
    """The first half to four fifths of its characters."""
    return text[: max(1, round(len(text) * generator.uniform(*_TYPED)))].rstrip() or text


_CHANGES: Mapping[Perturbation, Callable[[str, np.random.Generator], str]] = {
    "typos": _typo,
    "word_order": _word_order,
    "prefix": _prefix,
}
_ORDER: Mapping[Perturbation, int] = {kind: position for position, kind in enumerate(_CHANGES)}
