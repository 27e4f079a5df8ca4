"""Which engine TO names, and its failures as errors that say whether to try again."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from slimtower.common.errors import TransientError, UserError, is_refusal, line
from slimtower.common.masking import has_unquoted_login, redacted
from slimtower.engines.engine import Engine
from slimtower.engines.kinds import kinds

_TARGETS = ", ".join(kind.address for kind in kinds())


@contextmanager
def open_engine(to: str) -> Iterator[Engine]:
    """The engine that TO names; UserError if it is unknown, not installed or refuses, TransientError if it fails."""
    if has_unquoted_login(to):
        raise UserError("TO has several @; write those of user and password as %40")
    make, uri = _engine(to)
    packages = frozenset[str]().union(*(kind.packages for kind in kinds()))
    try:
        engine = _connect(make, uri, to)
        try:
            yield engine
        finally:
            engine.close()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in packages:
            raise
        raise UserError(
            f"TO={redacted(to)} needs {error.name}; run `make setup-all`, or `pip install -r requirements/extras.lock`"
        ) from None
    except Exception as error:
        if isinstance(error, UserError) or type(error).__module__.partition(".")[0] not in packages:
            raise
        if is_refusal(error):
            raise UserError(
                f"{redacted(to)}: the engine refused: {line(error)[:300]}; check the login (PGPASSWORD, QDRANT_API_KEY,"
                " MILVUS_TOKEN), what it may do, and TO"
            ) from error
        raise TransientError(
            f"{redacted(to)}: {line(error)[:300]}; look at the engine, then run it again: it goes on where it stopped"
        ) from error


def _connect(make: type[Engine], uri: str, to: str) -> Engine:
    """The engine, after a first answer; UserError if something else answers there, or its files are no engine's."""
    try:
        engine = make(uri)
        engine.names("")
    except (AssertionError, ValueError) as error:  # the clients' own checks, and what JSON and URLs are read by
        raise UserError(f"{redacted(to)}: no such engine answers there ({line(error)[:200]}); look at TO") from error
    return engine


def _engine(to: str) -> tuple[type[Engine], str]:
    scheme, is_address, _ = to.partition("://")
    if is_address:
        _check_address(to, scheme)
    for kind in kinds():
        if (uri := kind.uri_of(to)) is not None:
            return kind, uri
    raise UserError(f"TO is {redacted(to)!r}; give one of {_TARGETS}")


def _check_address(to: str, scheme: str) -> None:
    """UserError for a port that is none, and for a server without a name; libpq has a socket's folder by default."""
    if any(sign.isspace() for sign in to):
        raise UserError(f"TO holds white space; write it as %20, and give one of {_TARGETS}")
    hosts = to.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")  # libpq takes several
    try:
        urls = [urlsplit(f"//{host}") for host in hosts]
        wrong = any(url.port == 0 or ("http" in scheme and not url.hostname) for url in urls)
    except ValueError:
        wrong = True
    if wrong:
        raise UserError(
            f"TO is {redacted(to)!r}, which has no server or no port from 1 to 65535; give one of {_TARGETS}"
        )
