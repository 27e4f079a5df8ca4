"""Figures and names as people read them."""

import re


def percent(ratio: float) -> str:
    """0.9871 -> 98.7 %, with a space that does not break."""
    return f"{ratio * 100:.1f}\u00a0%"


def size(count: float) -> str:
    """Bytes as MB or kB."""
    return f"{count / 1e6:,.1f}\u00a0MB" if count >= 1e5 else f"{count / 1e3:,.1f}\u00a0kB"


def milliseconds(value: float) -> str:
    """Milliseconds with the digits that a timing can bear: 0.0102 -> 0.010, 0.677 -> 0.68, 12.94 -> 12.9."""
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def rounded(count: float) -> int:
    """An estimate with two digits: 3142 -> 3100."""
    return int(float(f"{count:.2g}"))


def times(ratio: float) -> str:
    """A speed-up with two digits: 892.5 -> 890, 81.3 -> 81, 1.647 -> 1.6, 5.01 -> 5, 0.0234 -> 0.02."""
    return (
        f"{rounded(ratio):,}" if ratio >= 10 else f"{ratio:.1f}".removesuffix(".0") if ratio >= 0.1 else f"{ratio:.1g}"
    )


def in_words(model: str) -> str:
    """What a system is, if its name says that: `4l` -> 4 layers, `static` -> no transformer; else the name."""
    words = {"static": "no transformer", "bm25": "BM25"}
    if match := re.fullmatch(r"(\d+)l", model):
        return "1 layer" if match[1] == "1" else f"{match[1]} layers"
    return words.get(model, model)
