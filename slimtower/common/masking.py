"""Secrets in what is told to people: passwords of URLs, tokens of queries, and what the environment calls a secret.

Text is masked before it is cut: of half a URL no one can say where its password begins.
"""

import contextlib
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote

MASK = "***"
_SHORTEST = 4  # characters; below, a mask would tell more than it hides
_WORD = 8  # a shorter secret is masked as a word only: it may be part of others
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,30}://"
_KEYS = r"(?:api|access|secret|private)[_-]?key(?:[_-]?id)?"
_NAMED = rf"token|secret|passw(?:or)?d|passphrase|pwd|signature|credentials?|{_KEYS}"
_LONG = r"\S{1,4096}"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"

# user:password@, to the last @ as a password may hold one, or / or '; without a colon only what no path can be
_LOGIN = re.compile(rf"({_SCHEME})(?:[^\s/@:]*:{_LONG}@|[^\s/'\"]+@)")
_QUERY = re.compile(rf"(?i)((?:{_NAMED}|x-amz-[a-z-]{{1,64}}|[?&;](?:sig|key|auth|code))(?:=|%3D))[^\s&]+")
_MAPPED = re.compile(rf"(?i)((?:{_NAMED}|authorization)\\*[\"']\s*:\s*b?)(?:{_QUOTED}|[^\s,}}\]]+)")
_HEADERS = r"authorization|x-amz-security-token|\b(?:x-)?(?:[a-z]{1,20}-)?api-key"
_HEADER = re.compile(rf"(?i)((?:{_HEADERS})\s*[:=]\s*)(?:(?:basic|bearer|token)\s+)?[^\s,]+|\b(bearer\s+)\S{{8,}}")
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:(?:PG)?PASSWORD|PASSWD|PASSPHRASE|PASS|SECRET|SALT|TOKEN|PAT"
    r"|(?:API|ACCESS|SECRET|PRIVATE|FERNET|ACCOUNT)_?KEY)$|_PWD$"
)
_MAYBE_SECRET_NAME = re.compile(r"(?i)(?<!SLIMTOWER_IMAGE)_(?:KEYS?|CREDENTIALS?|PASSWORDS|SECRETS|TOKENS)$")
_LONG_SECRET = 16  # characters
_GIVEN_LOGIN = re.compile(rf"(?s){_SCHEME}([^/@:]*:.+)@")
_PROXY_LOGIN = re.compile(r"[^/@:]*:([^/]+)@")  # without a scheme
_RUNS = re.compile(r"\s+|\S+")
_NOT_SECRET = {"true", "false", "none", "null"}
_REMEMBERED: set[str] = set()  # secrets whose variables have names of the user's own


def remember(secret: str) -> None:
    """Mask this from now on, whatever the variable is called that holds it."""
    _REMEMBERED.add(secret.strip())


def names_secret(name: str) -> bool:
    """Whether what has this name is one, such as `api_key`."""
    return re.fullmatch(rf"(?i)(?:x-)?(?:{_NAMED}|authorization|auth|key)", name) is not None


def has_unquoted_login(url: str) -> bool:
    """Whether a URL has an `@` in its login, after which clients look for the host, and show the rest of a password."""
    return "://" in url and url.partition("?")[0].count("@") > 1


def redacted(text: str) -> str:
    """The text with `***` for every secret in it that has a known form, or is known from the environment."""
    if (pattern := _secrets_pattern(_environment())) is not None:
        text = pattern.sub(MASK, text)
    text = _LOGIN.sub(rf"\1{MASK}@", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _MAPPED.sub(rf"\1{MASK}", text)
    return _HEADER.sub(rf"\1\2{MASK}", text)


def masked_traceback(error: BaseException) -> str:
    """The traceback of an error and of those behind it, as Python prints it, without secrets."""
    return redacted("".join(traceback.format_exception(error)))


def mask_tracebacks() -> None:
    """From now on print the traceback of what nobody catches without secrets, in threads too."""
    sys.excepthook = _print_masked
    threading.excepthook = lambda args: _print_masked(args.exc_type, args.exc_value, args.exc_traceback)


def _print_masked(_: type[BaseException], error: BaseException | None, __: TracebackType | None) -> None:
    if error is not None and not isinstance(error, SystemExit):  # one that ends a thread says nothing
        print(masked_traceback(error), end="", file=sys.stderr)


def _environment() -> frozenset[str]:
    """The secrets of the environment, without the white space around them."""
    secrets = set(_REMEMBERED)
    for name in list(os.environ):  # a copy: a library's thread may set or unset a variable meanwhile
        value = os.environ.get(name, "")
        if value.startswith("{"):  # as a connection of Airflow's
            secrets |= {secret.strip() for secret in _secrets_of_json(value)}
        if _SECRET_NAME.search(name) or (_MAYBE_SECRET_NAME.search(name) and _is_long_secret(value)):
            secrets.add(value.strip())
        elif "://" in value:
            secrets |= {login.partition(":")[2].strip() for login in _GIVEN_LOGIN.findall(value)}
        elif name.lower().endswith("_proxy") and (login := _PROXY_LOGIN.match(value)):
            secrets.add(login[1])
    secrets |= {unquote(secret) for secret in secrets}
    return frozenset(secret for secret in secrets if len(secret) >= _SHORTEST and secret.lower() not in _NOT_SECRET)


def _is_long_secret(value: str) -> bool:
    """Is it too long for a word, and no file's path?"""
    with contextlib.suppress(OSError):  # too long for a path
        return len(value) >= _LONG_SECRET and not ("/" in value and Path(value).exists())
    return True


def _secrets_of_json(text: str) -> Iterator[str]:
    """Texts in JSON whose keys name secrets, also in JSON that is a text in it."""
    waiting: list[Any] = [text]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and value.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                waiting.append(json.loads(value))
        elif isinstance(value, dict):
            waiting += value.values()
            named = (key for key in value if names_secret(key) or _SECRET_NAME.search(key))
            yield from (value[key] for key in named if isinstance(value[key], str))
        elif isinstance(value, list):
            waiting += value


@cache
def _secrets_pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    if not secrets:
        return None
    return re.compile("|".join(_spellings(secret) for secret in sorted(secrets, key=lambda text: (-len(text), text))))


def _spellings(secret: str) -> str:
    """A pattern for a secret as it is, percent-encoded, with escapes, and on one line or several."""
    pattern = "".join(_white(run) if run.isspace() else "".join(map(_spelled, run)) for run in _RUNS.findall(secret))
    return pattern if len(secret) >= _WORD else rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"


def _white(run: str) -> str:
    """A pattern for white space, which may have become other white space; each is read in one way, not in 2^n."""
    return rf"(?:\s|\+|{'|'.join(_spelled(character, min_backslashes=1) for character in sorted({*run, ' '}))})+"


def _spelled(character: str, min_backslashes: int = 0) -> str:
    """A pattern for one character; unescaped, it has at least `min_backslashes` backslashes in front."""
    if character.isascii() and character.isalnum():
        return character
    raw = character.encode("utf-8", errors="surrogateescape")
    percent = "".join(rf"%(?:25)*(?i:{byte:02x})" for byte in raw)
    escaped = {json.dumps(character)[1:-1], ascii(character)[1:-1], repr(raw)[2:-1]}
    escapes = [r"\\{1,64}".join(map(re.escape, form.split("\\"))) for form in sorted(escaped) if "\\" in form]
    return rf"(?:\\{{{min_backslashes},64}}{re.escape(character)}|{'|'.join([percent, *escapes])})"
