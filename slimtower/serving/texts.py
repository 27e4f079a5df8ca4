"""What counts as a text to encode, checked before anything is computed."""

from collections.abc import Iterable


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: object, name: str) -> str:
    """The text. TypeError if it is no str, ValueError if it holds half a surrogate pair; both name the argument."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is of type {type(text).__name__}; give a str")
    if not is_unicode(text):
        raise ValueError(f"{name} holds half a surrogate pair, which is no character; decode the text as UTF-8 first")
    return text


def check_texts(texts: Iterable[str], name: str) -> list[str]:
    """The texts as a list, each checked. TypeError for one str or bytes: its letters would count as texts."""
    if isinstance(texts, str | bytes | bytearray) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} is of type {type(texts).__name__}; give a list of str")
    return [check_text(text, f"{name}[{position}]") for position, text in enumerate(texts)]
