"""Unicode normalisation that mining, leakage checks and BM25 share, and words of scripts without spaces.

It needs the standard library alone, as answering queries does not bring more.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

UNSEEN: dict[int, str] = {0xAD: "", 0x2060: ""}
"""Translation that takes out soft hyphens and word joiners."""
_FORMS = re.compile("[\ufb00-\ufb06\uff61-\uffdc]+")  # ligatures of Latin letters, half-width kana and Hangul
_READER_TABLE = UNSEEN | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width letters and signs
# Han, Hiragana, Katakana, Thai, Lao, Khmer and Myanmar, in the standard library's terms: serving needs no more than it
_LETTERS = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U000116d0-\U000116e3\U00016fe3"
    "\U0001aff0-\U0001b16f\U00020000-\U000323af"
)
_MARKS = (  # belong to the letter before them
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
    "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd\u302a-\u302f"
    "\u3099\u309a\ua9e5\uaa7b-\uaa7d\ufe00-\ufe0f\U000e0100-\U000e01ef"
)
_CHARACTER = re.compile(rf"[{_LETTERS}](?<=[^\W_])[{_MARKS}]*")
_RUN = re.compile(rf"(?:{_CHARACTER.pattern})+")


def as_read(text: str, *, one_form: bool = True) -> str:
    """NFC, without what no reader sees, and in letters of one width.

    Without `one_form` ligatures and half-width kana stay, as the BM25 indexes of earlier releases have them.
    """
    if text.isascii():
        return text
    if one_form:
        text = _FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", text.translate(_READER_TABLE))


def undotted(text: str) -> str:
    """With an i for each dotted capital I, to which str.lower() would add a mark."""
    return text.replace("İ", "i")


def characters(term: str) -> list[str]:
    """The characters of a word of a script without spaces, each with its marks; none of another word."""
    return [] if term.isascii() else _CHARACTER.findall(term)


def words_in(text: str, word: Any) -> list[str]:
    """The words of a text in order: what `word`, a compiled pattern, finds; of scripts without spaces pairs instead.

    A run of such characters gives each two neighbours, a single one itself.
    """
    if text.isascii() or not _RUN.search(text):
        words: list[str] = word.findall(text)
        return words
    return [text[start:end] for start, end in _word_spans(text, word)]


def places_in(text: str, word: Any) -> list[tuple[int, int]]:
    """Start and end of each word of `words_in`; pairs overlap."""
    return list(_word_spans(text, word))


def _word_spans(text: str, word: Any) -> Iterator[tuple[int, int]]:
    end = 0
    for run in _RUN.finditer(text):
        yield from _between(text, word, end, run.start())
        spans = [character.span() for character in _CHARACTER.finditer(run[0])]
        for first, last in zip(spans, spans[1:] or spans, strict=False):
            yield run.start() + first[0], run.start() + last[1]
        end = run.end()
    yield from _between(text, word, end, len(text))


def _between(text: str, word: Any, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans of the words of a part, which begins and ends as a text does."""
    return ((start + first, start + last) for first, last in (match.span() for match in word.finditer(text[start:end])))
