"""How MLflow's server is reached, a sqlite file by default, any by MLFLOW_TRACKING_URI; and where its artefacts are."""

import contextlib
import glob
import json
import logging
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from slimtower.common.errors import TransientError, UserError, exhausted, line
from slimtower.common.files import file_lock, staged_file
from slimtower.common.imports import uncollected_imports
from slimtower.common.s3 import FIX_CERTIFICATE, advice, says_refused, says_untrusted

_SETTINGS = {
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # of files on this very disk, mostly
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # after 0, 4 and 8 seconds; a stage keeps what it cannot send
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # seconds
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_REFUSED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
_AWAY = ("failed with exception", "failed with timeout exception")  # how MLflow tells of its server
# Of its database, which it tells as if the call were wrong; read-only is one whose other half takes over
_OVERLOADED = ("QueuePool limit", "InterfaceError", "read-only transaction")
_FOREIGN = ("failed with error code", "not in a valid JSON format")  # of an answer that is no MLflow's
_STORE_FAILED = ("failures occurred while", "Failed to list artifacts")  # how MLflow tells of its artefact store
_STATUS = re.compile(r"\b([45]\d\d) (?:Client|Server) Error")  # as requests tells it
_LIMITS = "look at the limits of the server and of what stands before it"
_SOON = 10.0  # seconds in which a server takes a connection, and in which it answers: else it is away
ARTEFACTS = "mlartifacts"  # the folder beside the database
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
_WAIT_S = 30  # for another process that writes


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or a sqlite file in the present folder; a relative path of one is of this folder, too."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    relative = re.fullmatch(r"sqlite:///([^/].*)", uri)
    return f"sqlite:///{Path(relative[1]).resolve()}" if relative else uri


def sqlite_file() -> Path | None:
    """The database of the tracking URI if that is a file of SQLite."""
    uri = tracking_uri()
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


class Unwanted(UserError):
    """What MLflow will not have, whenever it is sent."""


class ForeignAnswer(TransientError):
    """Somebody else answers at the server's address: a proxy, or a page to log in."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{tracking_uri()}: does not answer as MLflow: {reason}; what stands between here and the server?"
        )
        self.reason = reason


@contextmanager
def reaching() -> Iterator[None]:
    """Failures of the tracking server or of the artefact store as errors that say whether to try again."""
    with uncollected_imports():
        import requests
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from google.protobuf.json_format import ParseError
        from mlflow.exceptions import MlflowException, RestException

    try:
        yield
    except MlflowException as error:
        text = line(error)
        if any(begin in text for begin in _STORE_FAILED):
            raise _store_error(error) from error
        if error.error_code in _REFUSED or "error code 401" in text or "error code 403" in text:
            raise UserError(
                f"{tracking_uri()}: the server refused: {text[:200]}; check MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD"
            ) from error
        if "error code 413" in text:
            raise Unwanted(f"{tracking_uri()}: too large for it: {text[:200]}; {_LIMITS}") from error
        if says_untrusted(str(error)):
            raise UserError(f"{tracking_uri()}: {text[:200]}; {FIX_CERTIFICATE}") from error
        if any(words in text for words in _AWAY + _OVERLOADED) or error.error_code == "TEMPORARILY_UNAVAILABLE":
            raise TransientError(f"{tracking_uri()}: not reached: {text[:200]}; is the server up?") from error
        unlike = isinstance(error, RestException) and "error_code" not in error.json  # MLflow's own say one
        if unlike or any(words in text for words in _FOREIGN):
            raise ForeignAnswer(text[:200]) from error
        raise
    except (json.JSONDecodeError, ParseError) as error:
        raise ForeignAnswer(f"{type(error).__name__}: {line(error)[:200]}") from error
    except (requests.RequestException, BotoCoreError, ClientError, Boto3Error) as error:
        raise _store_error(error) from error


@contextmanager
def sending() -> Iterator[None]:
    """As `reaching`, for what was kept to be sent later: any other failure of MLflow's is Unwanted."""
    with uncollected_imports():
        from mlflow.exceptions import MlflowException

    try:
        with reaching():
            yield
    except MlflowException as error:
        raise Unwanted(line(error)) from error


def _store_error(error: Exception) -> UserError:
    """A refusal of the artefact store, Unwanted if it is of what was sent, or a failure on the way to it."""
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError

    message = f"artefact store of {tracking_uri()}: {line(error)[:300]}"
    answer = f"{error} {error.__context__}"  # MLflow leaves out the code of a list that S3 refuses
    refused = getattr(error, "error_code", None) in _REFUSED or says_refused(answer)
    if refused or isinstance(error, NoCredentialsError | PartialCredentialsError):
        remedy = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and the bucket"
        return UserError(f"{message}; {advice(answer, remedy)}")
    status = _status(error)
    if status in (401, 403):
        return UserError(f"{message}; check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
    if status == 413 or "EntityTooLarge" in answer:
        return Unwanted(f"{message}; {_LIMITS}")
    return TransientError(f"{message}; try again, and if it stays, look at the store and what stands before it")


def _status(error: Exception) -> int:
    """HTTP's status of the answer behind an error, 0 if there was none."""
    for cause in (error, error.__context__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if response is not None:
            return int(response.status_code)
    match = _STATUS.search(str(error))  # of several files MLflow says in words what failed
    return int(match[1]) if match else 0


def client() -> Any:
    """An MlflowClient on the tracking URI, quiet about its own database migrations."""
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    with uncollected_imports():
        from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with opening():
        api = MlflowClient(tracking_uri=tracking_uri())
        if database := sqlite_file():
            follow_folder(database)
        return api


def check_answering() -> None:
    """TransientError if a server keeps silent, as one does behind a network that drops what is sent.

    MLflow's client would wait for its time-out as often as it tries. What fails at once is left to it: it tells why.
    """
    import requests

    uri = tracking_uri()
    if not uri.startswith(("http://", "https://")):
        return
    try:
        requests.get(f"{uri.rstrip('/')}/health", timeout=_SOON, stream=True, allow_redirects=False).close()
    except requests.Timeout as error:
        raise TransientError(f"{uri}: no answer within {_SOON:g} seconds; is the server up?") from error
    except (requests.RequestException, ValueError):
        return


@contextmanager
def opening() -> Iterator[None]:
    """The first contact with the tracking store: what fails there, but for a network, is a UserError."""
    uri, file = tracking_uri(), sqlite_file()
    if file:
        _check_sqlite(file)
    try:
        with reaching():
            if file:
                _make_whole(file.resolve())
            yield
    except Exception as error:  # of MLflow, of SQLAlchemy, of a driver that is not there
        if isinstance(error, UserError) and not isinstance(error, ForeignAnswer):
            raise
        reason = error.reason if isinstance(error, ForeignAnswer) else f"{type(error).__name__}: {line(error)[:200]}"
        advice = "fix MLFLOW_TRACKING_URI, or unset it for mlflow.db here"
        if file and file.exists():
            advice = "move it away, and a new one is made, or let MLFLOW_TRACKING_URI name another"
        raise exhausted(error) or UserError(f"{uri}: cannot be used for tracking ({reason}); {advice}") from error


def _make_whole(path: Path) -> None:
    """Make a database that is not there, or empty, so that it appears with all its tables.

    MLflow makes them in about 50 steps in the file itself: a kill, or a second process, leaves what never opens again.
    """
    if path.exists() and path.stat().st_size:
        return
    with file_lock(path.with_name(f".{path.name}.lock")):
        if path.exists() and path.stat().st_size:  # another process was faster
            return
        for stale in path.parent.glob(f".staging.{glob.escape(path.name)}.*"):  # of a process that was killed
            stale.unlink(missing_ok=True)
        with staged_file(path) as staging:
            _write_database(staging)


def _write_database(path: Path) -> None:
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(f"sqlite:///{path}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()


def _check_sqlite(path: Path) -> None:
    """UserError for what is no database of SQLite, which MLflow would try to open for minutes."""
    if path.is_file():
        with path.open("rb") as file:
            begin = file.read(16)
        fault = "is no database of SQLite" if begin not in (b"", b"SQLite format 3\0") else ""
    elif path.exists():
        fault = "is not a file"
    else:
        fault = "" if path.parent.is_dir() else f"{path.parent} is no folder"
    if fault:
        raise UserError(f"MLFLOW_TRACKING_URI names {path}, but {fault}; name another file, or unset it")


def follow_folder(database: Path) -> None:
    """Rewrite the addresses of a database whose folder was moved or copied, and say so in one line.

    Only this database changes: the folder that it was copied from is neither read nor written.
    UserError if the artefacts were left behind.
    """
    folder = database.resolve().parent
    with contextlib.closing(sqlite3.connect(database, timeout=_WAIT_S)) as connection:
        for earlier in _earlier_folders(connection, folder):
            artefacts = _path(earlier) / ARTEFACTS
            if artefacts.is_dir() and not (folder / ARTEFACTS).exists():
                raise UserError(
                    f"{database}: its artefacts are in {artefacts}, and {folder} has none; copy {ARTEFACTS} to"
                    f" {folder}, or delete the database there to start a new one"
                )
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                _rewrite(connection, earlier, folder.as_uri())
                _rewrite(connection, str(_path(earlier)), str(folder))
            print(
                f"tracking: this project was in {_path(earlier)}; MLflow now reads and writes its artefacts in"
                f" {folder / ARTEFACTS}",
                file=sys.stderr,
            )


def _earlier_folders(connection: sqlite3.Connection, folder: Path) -> Iterator[str]:
    """Addresses (`file:///...`) of other folders that held this database and its artefacts."""
    for (recorded,) in connection.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall():
        parent, _, name = str(recorded).rstrip("/").rpartition("/")
        if name == ARTEFACTS and parent.startswith("file:") and _path(parent).resolve() != folder:
            yield parent


def _path(address: str) -> Path:
    return Path(unquote(urlsplit(address).path) or "/")


def _rewrite(connection: sqlite3.Connection, earlier: str, present: str) -> None:
    """Put `present` for `earlier` where an address is it or lies below it."""
    for table, column in _COLUMNS:
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? OR substr({column}, 1, ?) = ?",
            (present, len(earlier) + 1, earlier, len(earlier) + 1, f"{earlier}/"),
        )


def unusable_root(root: str, server: str, error: Exception) -> UserError:
    """What to do about an artefact root that this machine cannot write, or whose library is not installed here."""
    fix = f"install {error.name}" if isinstance(error, ImportError) and error.name else "let this machine write there"
    return UserError(
        f"artefact root {root} of {server} cannot be used from this machine ({type(error).__name__}:"
        f" {line(error)[:200]}); {fix}, or give the experiment another root, or start the server with --serve-artifacts"
    )
