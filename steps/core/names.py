"""Names that become folders and files: which may, so that none leads out of the folder that it belongs in."""

import re

LONGEST = 64
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


def plain_name(text: str) -> str:
    """The text where it is a plain name, as those of students and data sets are; ValueError says what is allowed."""
    if len(text) > LONGEST or ".." in text or not _PLAIN.fullmatch(text):
        raise ValueError(
            f"a name is 1 to {LONGEST} of the characters A-Z a-z 0-9 . _ -, begins with a letter or digit and holds no"
            " '..'; choose another name"
        )
    return text


def inner_path(text: str) -> str:
    """The text where it is the posix path of a file inside a folder; ValueError where it could lead out of it."""
    if _CONTROL.search(text) or not {"", ".", ".."}.isdisjoint(text.split("/")):
        raise ValueError("a file is named by its path inside the folder, without '..' and no absolute one")
    return text
