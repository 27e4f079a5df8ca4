"""Where MLflow's artefacts are: beside its sqlite file, whose folder may move, or in a root that a server names."""

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from slimtower.common.errors import UserError, line

ARTEFACTS = "mlartifacts"  # the folder beside the database
_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
_WAIT_S = 30  # for another process that writes


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
