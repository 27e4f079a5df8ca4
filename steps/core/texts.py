"""Plain text: folding, words, sentences, and the one way a document becomes a string."""

import re
import sys
import unicodedata
from functools import lru_cache

import regex

_WORD = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*")  # combining marks belong to the letter before them
_ASCII_WORD = re.compile(r"[0-9a-z]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])|\n\s*\n")


@lru_cache(maxsize=1)
def _punctuation() -> dict[int, str]:
    """Translation of every punctuation mark and symbol to a space."""
    return {
        code: " " for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in {"P", "S", "Z", "C"}
    }


def fold(text: str) -> str:
    """The key under which two texts count as equal: NFKC, lower case, punctuation and white space folded."""
    if text.isascii():  # the same result in half the time
        return " ".join(_ASCII_WORD.findall(text.lower()))
    return " ".join(unicodedata.normalize("NFKC", text).casefold().translate(_punctuation()).split())


def words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits, in order. Scripts without spaces between words come out as one word."""
    lowered = text.lower()
    return _ASCII_WORD.findall(lowered) if lowered.isascii() else _WORD.findall(lowered)


def sentences(text: str) -> list[str]:
    """Sentences of a text by its punctuation, white space collapsed, in order."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := " ".join(part.split()))]


def document_text(title: str, content: str) -> str:
    """What a document tower reads: the title, then the content."""
    return f"{title}. {content}".strip(". ") if title else content
