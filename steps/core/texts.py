"""Plain text: folding, words, sentences, and the one way a document becomes a string."""

import re
import sys
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(\[])|\n\s*\n")


@lru_cache(maxsize=1)
def _punctuation() -> dict[int, str]:
    """Translation of every punctuation mark and symbol to a space."""
    return {
        code: " " for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in {"P", "S", "Z", "C"}
    }


def fold(text: str) -> str:
    """The key under which two texts count as equal: NFKC, lower case, punctuation and white space folded."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().translate(_punctuation()).split())


def words(text: str) -> list[str]:
    """Lower-cased alphanumeric runs of a text, in order."""
    return _WORD.findall(text.lower())


def sentences(text: str) -> list[str]:
    """Sentences of a text by its punctuation, white space collapsed, in order."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := " ".join(part.split()))]


def document_text(title: str, content: str) -> str:
    """What a document tower reads: the title, then the content."""
    return f"{title}. {content}".strip(". ") if title else content
