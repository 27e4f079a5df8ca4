"""One spelling for what readers take for the same word; of the standard library alone, as serving needs it."""

import unicodedata

UNSEEN: dict[int, str] = {0xAD: "", 0x2060: ""}
"""Translation that takes out soft hyphens and word joiners."""
_READ = UNSEEN | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width letters and signs


def as_read(text: str) -> str:
    """NFC, without what no reader sees, and in letters of one width."""
    return text if text.isascii() else unicodedata.normalize("NFC", text.translate(_READ))


def undotted(text: str) -> str:
    """With an i for each dotted capital I, to which str.lower() would add a mark."""
    return text.replace("İ", "i")
