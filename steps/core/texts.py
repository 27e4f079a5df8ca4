"""Plain text: folding, words, sentences."""

import re
import sys
import unicodedata
from functools import lru_cache

import regex

from slimtower.common.unicode_norm import UNSEEN, as_read, places_in, undotted, words_in

_WORD = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*")  # combining marks belong to the letter before them
_ASCII_WORD = re.compile(r"[0-9a-z]+")
# Signs that tell a word from another: those that end c++, c# and a+, but not in 1+1 and issue#5, and the one of .net;
# before other words a full stop is markup more often than a name
_NAME = r"(?:(?<!{sign})\.(?=net(?!{letter})))?{letter}+(?:\+\++|[+#]+(?!{letter}))?"
_ASCII_NAME = re.compile(_NAME.format(sign="[!-~]", letter="[0-9a-z]"))
_ANY_NAME = re.compile(_NAME.format(sign=r"\S", letter=r"[^\s,+#.]"))  # in what _signs leaves
_CAPITAL = "A-ZÀ-ÖØ-ÞΑ-ΩА-Я"
_CLOSING = r"(?:[\"'”’»)\]」』）】]|[ \u00a0\u202f]»)*"
_ITEM = r"(?:[-*•◦‣▪–—]|\#{1,6}|\(?(?:\d{1,3}[.)]|[A-Za-z]\)))\s"
_SENTENCE_END = re.compile(
    r"[.!?…。！？｡।॥؟۔።։;{}\n](?:"  # one class in front lets the search skip all other letters
    + "|".join(
        (
            rf"(?P<stop>(?<=[.!?…]){_CLOSING}(?:[^\S\n]+(?![\s,;:.)])|(?=\n)))",
            rf"(?<=[。！？｡])(?![。！？｡]){_CLOSING}",
            r"(?<=[।॥؟۔።։])",
            r"(?<=[;{}])[^\S\n]*\n",  # of a line of code
            r"(?<=\n)\s*\n",  # of a paragraph
            rf"(?<=\n)(?=[^\S\n]*{_ITEM})",  # the next line is a heading, or an item of a list
            rf"(?<=\n)(?<![^\n]{{50}}\n)(?=[^\S\n]*[{_CAPITAL}])",  # of a line too short to have been wrapped
        )
    )
    + ")"
)
# A full stop behind these ends no sentence; behind the second ones it may, before a capital letter.
_SHORT = re.compile(
    r"e\.g|i\.e|cf|vs?|viz|figs?|eqs?|refs?|ch|vol|pp?|[dms]r|mrs|prof|st|mt|approx|incl|resp|z|bzw|max|min|spp?",
    re.IGNORECASE,
)
_SHORT_OR_LAST = re.compile(
    r"al|etc|inc|ltd|co|corp|jr|dept|art|sec|tab|ca|ms|ps|ph\.d|(?:[^\W\d_]\.)*[^\W\d_]"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)


_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WRITTEN_WORD = regex.compile(rf"[{_UNSPACED}]\p{{M}}*|[^\s{_UNSPACED}]+")
_BETWEEN_BLANKS = re.compile(r"\S+")


@lru_cache(maxsize=1)
def _signs() -> dict[int, str]:
    """Translation of white space and the like to a space, and of signs other than `+`, `#` and `.` to `,`."""
    kinds = ((code, unicodedata.category(chr(code))[0]) for code in range(sys.maxunicode + 1))
    folded = {code: " " if kind in "ZC" else "," for code, kind in kinds if kind in "PSZC"}
    unseen = dict.fromkeys(
        [0x34F, 0x200B, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)], ""
    )  # emoji's variants too
    return folded | {ord(sign): sign for sign in "+#."} | {ord("\N{MUSIC SHARP SIGN}"): "#"} | unseen | UNSEEN


def fold(text: str) -> str:
    """The key under which two texts count as equal: NFKC, lower case, punctuation and white space folded.

    Signs stay where they are part of a word: at its end `+` and `#`, before it the full stop of `.net`.
    """
    if text.isascii():  # the same result in half the time
        lowered = text.lower()
        signed = "+" in lowered or "#" in lowered or ".net" in lowered
        return " ".join((_ASCII_NAME if signed else _ASCII_WORD).findall(lowered))
    return _folded(text)


def _folded(text: str) -> str:
    """Normalised again after case is folded, which may part a letter from its mark; Turkish i and ı are one."""
    folded = unicodedata.normalize("NFKC", undotted(unicodedata.normalize("NFKC", text)).casefold())
    return " ".join(_ANY_NAME.findall(folded.replace("i\u0307", "i").replace("ı", "i").translate(_signs())))


def words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits, in order; of scripts without spaces between words pairs of characters.

    Of the text as it is read: a letter and its mark may be written as one sign or as two.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return words_in(undotted(as_read(text)).lower(), _WORD)


def lowered_places(lowered: str) -> list[tuple[int, int]]:
    """Start and end of each of the `words` in a text in lower case; pairs of characters overlap."""
    return places_in(lowered, _WORD)


def word_places(text: str) -> list[tuple[int, int]]:
    """Start and end of each word as it is written; scripts without spaces between words give their characters."""
    pattern = _BETWEEN_BLANKS if text.isascii() else _WRITTEN_WORD
    return [word.span() for word in pattern.finditer(text)]


def words_of(text: str) -> list[str]:
    """The words of `word_places`."""
    return [text[start:end] for start, end in word_places(text)]


def first_words(text: str, limit: int) -> str:
    """The first `limit` words, white space collapsed; of scripts without spaces a character is a word."""
    if text.isascii():  # the same result in a fraction of the time
        return " ".join(text.split(maxsplit=limit)[:limit])
    text = " ".join(text.split())
    places = word_places(text)
    return text[: places[limit - 1][1]] if len(places) > limit else text


def sentences(text: str) -> list[str]:
    """Sentences, lines and items of lists of a text in any case, white space collapsed, in order."""
    parts, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if not _goes_on(text, start, match):
            parts.append(text[start : match.end()])
            start = match.end()
    return [sentence for part in (*parts, text[start:]) if (sentence := " ".join(part.split()))]


def _goes_on(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the full stop of `match` is that of an abbreviation, of initials, or of the number of an item."""
    stop = match.start()
    before = text[max(start, stop - 20) : stop].split()
    if match["stop"] is None or text[stop] != "." or not before:
        return False
    word, after = before[-1].lstrip("([\"'“‘"), text[match.end() : match.end() + 20].lstrip()[:1]
    if word.isdigit():
        return len(before) == 1
    is_spaced = text[stop - 1].isspace()
    if len(word) == 1 and (is_spaced or word.isupper()):
        return not is_spaced  # "J. Smith", but not "the plane p ."
    if word.lower() in ("no", "nos"):
        return after.isdigit()
    return bool(_SHORT.fullmatch(word) or (_SHORT_OR_LAST.fullmatch(word) and not after.isupper()))
