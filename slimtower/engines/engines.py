"""Which engine TO names, and its failures as errors that say whether to try again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from slimtower.common.errors import TransientError, UserError, line
from slimtower.common.masking import has_unquoted_login, redacted
from slimtower.engines.engine import Engine
from slimtower.engines.milvus import Milvus
from slimtower.engines.postgres import Postgres
from slimtower.engines.qdrant import Qdrant
from slimtower.engines.refusals import is_refusal

_TARGETS = (
    "postgresql://host/database (pgvector), http(s)://host:6333 (Qdrant), milvus+http(s)://host:19530 (Milvus),"
    " a file <name>.db (Milvus Lite) or qdrant:<folder> (the local mode of Qdrant's client)"
)
_CLIENTS = {"psycopg", "pgvector", "qdrant_client", "pymilvus", "milvus_lite", "grpc", "httpx", "httpcore"}


@contextmanager
def open_engine(to: str) -> Iterator[Engine]:
    """The engine that TO names; UserError if it is unknown or its client is not installed.

    UserError also if the engine refuses, TransientError if it cannot be reached or fails in between.
    """
    if has_unquoted_login(to):
        raise UserError("TO has several @; write those of user and password as %40")
    make, uri = _engine(to)
    try:
        engine = _connect(make, uri, to)
        try:
            yield engine
        finally:
            engine.close()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _CLIENTS:
            raise
        raise UserError(
            f"TO={redacted(to)} needs {error.name}; run `make setup-all`, or `pip install -r requirements/extras.lock`"
        ) from None
    except Exception as error:
        if isinstance(error, UserError) or type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        if type(error).__name__ == "ProgrammingError" and getattr(error, "sqlstate", "") is None:
            # psycopg's own, of the address, which it repeats with the password
            raise UserError(
                "TO holds no address that can be read; give postgresql://user:password@host/database, with special"
                " characters as %20"
            ) from None
        if is_refusal(error):
            raise UserError(
                f"{redacted(to)}: the engine refused: {line(error)[:300]}; check the login (PGPASSWORD, QDRANT_API_KEY,"
                " MILVUS_TOKEN), what it may do, and TO"
            ) from error
        raise TransientError(
            f"{redacted(to)}: {line(error)[:300]}; look at the engine, then run it again: it goes on where it stopped"
        ) from error


def _connect(make: Callable[[str], Engine], uri: str, to: str) -> Engine:
    """The engine, after a first answer; UserError if something else answers there, or its files are no engine's."""
    try:
        engine = make(uri)
        engine.names("")
    except (AssertionError, ValueError) as error:  # the clients' own checks, and what JSON and URLs are read by
        raise UserError(f"{redacted(to)}: no such engine answers there ({line(error)[:200]}); look at TO") from error
    return engine


def _engine(to: str) -> tuple[Callable[[str], Engine], str]:
    scheme, rest = to.partition("://")[0], to.partition(":")[2]
    if "://" in to:
        _check_address(to, scheme)
    if scheme in ("postgresql", "postgres"):
        return Postgres, to
    if scheme in ("http", "https"):
        return Qdrant, to
    if scheme in ("milvus+http", "milvus+https"):
        return Milvus, to.removeprefix("milvus+")
    if to.startswith("qdrant:") and rest:
        return Qdrant, rest
    if to.endswith(".db") and "://" not in to:
        return Milvus, to
    raise UserError(f"TO is {redacted(to)!r}; give {_TARGETS}")


def _check_address(to: str, scheme: str) -> None:
    """UserError for a port that is none, and for a server without a name; libpq has a socket's folder by default."""
    if any(sign.isspace() for sign in to):
        raise UserError(f"TO holds white space; write it as %20, and give {_TARGETS}")
    hosts = to.partition("://")[2].partition("/")[0].rpartition("@")[2].split(",")  # libpq takes several
    try:
        urls = [urlsplit(f"//{host}") for host in hosts]
        wrong = any(url.port == 0 or ("http" in scheme and not url.hostname) for url in urls)
    except ValueError:
        wrong = True
    if wrong:
        raise UserError(f"TO is {redacted(to)!r}, which has no server or no port from 1 to 65535; give {_TARGETS}")
