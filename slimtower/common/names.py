"""Names that become folders and files: which may, so that none leads out of the folder that it belongs in."""

import re
from typing import Literal

Role = Literal["query", "document"]
ROLES: tuple[Role, Role] = ("query", "document")
LONGEST = 64
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # YAML 1.1's, 1.2's
_BASED = re.compile(r"0[box][0-9a-f_]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


def plain_name(text: str) -> str:
    """The text where it is a plain name, as those of students and data sets are; ValueError says what is allowed."""
    if len(text) > LONGEST or ".." in text or not _PLAIN.fullmatch(text):
        raise ValueError(
            f"a name is 1 to {LONGEST} of the characters A-Z a-z 0-9 . _ -, begins with a letter or digit and holds no"
            " '..'; choose another name"
        )
    return text


def key_name(text: str) -> str:
    """A plain name that DVC takes as a key: without a full stop, and neither a number nor a truth; else ValueError."""
    if "." in plain_name(text) or _is_no_text(text):
        raise ValueError("DVC takes no name that holds a full stop, or reads as a number or truth; choose another name")
    return text


def _is_no_text(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name.lower() in _WORDS or _BASED.fullmatch(name.lower()) is not None
    return True


def inner_path(text: str) -> str:
    """The text where it is the posix path of a file inside a folder; ValueError where it could lead out of it."""
    if _CONTROL.search(text) or not {"", ".", ".."}.isdisjoint(text.split("/")):
        raise ValueError("a file is named by its path inside the folder, without '..' and no absolute one")
    return text
