"""Files of a source by its location: a local file or folder, or s3://bucket/prefix; of a window only its partitions.

Inside `reading_only`, what was listed is read: files that came later are left out, changed or missing ones are errors.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from slimtower.common import s3
from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, sha256_file, sha256_text, staged_file
from steps.core.progress import progress
from steps.ingest.partitions import Below, Entry, Tree, contents, named_span
from steps.ingest.table_rows import PATTERNS
from steps.ingest.times import ALWAYS, Window

_CHUNK = 1 << 20  # bytes
_DOWNLOADS = 8  # at a time; below the client's pool of ten connections

Rows = Sequence[Mapping[str, Any]]  # as `listing` gives them
_listed: ContextVar[Mapping[str, Rows] | None] = ContextVar("listed", default=None)


class Located(NamedTuple):
    """A file of a source: its posix path below the source's root, and where it lies on this machine."""

    name: str
    path: Path


@contextmanager
def reading_only(listed: Mapping[str, Rows]) -> Iterator[None]:
    """Let `locate` find just these files: the rows of `listing` by the key of params.yaml that names the location."""
    token = _listed.set(listed)
    try:
        yield
    finally:
        _listed.reset(token)


def table_files(location: str, key: str, window: Window = ALWAYS) -> list[Located]:
    """The tables below a location, sorted by name, less those of dates outside the window.

    UserError for none, and for a table that is there plain and as `.gz`: its rows would count twice.
    """
    files = locate(location, key=key, window=window, patterns=PATTERNS)
    packed = {_plain(file.name[:-3]): file.name for file in files if file.name.lower().endswith(".gz")}
    for file in files:
        if packed_name := packed.get(_plain(file.name)):
            raise UserError(
                f"params.yaml: {key}: {location}: {packed_name} lies beside {file.name}; remove one of them"
            )
    return files


def _plain(name: str) -> str:
    stem, dot, ending = name.rpartition(".")
    return f"{stem}{dot}{ending.lower()}"


def one_file(location: str, key: str) -> Path:
    """A single file; UserError as of `locate`, and if there are several."""
    files = locate(location, key=key)
    if len(files) != 1:
        raise UserError(f"params.yaml: {key}: {location} holds {len(files)} files; name one of them")
    return files[0].path


@contextmanager
def local_folder(location: str, key: str, patterns: Sequence[str]) -> Iterator[Path]:
    """The folder, or a temporary one of links to the files that were listed or downloaded; UserError as of `locate`."""
    files = locate(location, key=key, patterns=patterns)
    if not _is_s3(location):
        available = contents(_local_tree(location, key), location, key, ALWAYS, patterns).entries
        if len(files) == len(available):
            yield Path(location)
            return
    with TemporaryDirectory() as scratch:
        for file in files:
            link = Path(scratch) / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.path.resolve())
        yield Path(scratch)


def locate(location: str, *, key: str, window: Window = ALWAYS, patterns: Sequence[str] = ()) -> list[Located]:
    """The files of a location, sorted by name; those of S3 are downloaded into the cache unless they are there.

    `key` is where params.yaml names the location, `patterns` are those of `matches`. Partitions outside of the window,
    hidden files and markers such as _SUCCESS are skipped.
    Raises UserError for a location that is missing, refused or empty in the window and for a file that is not as it
    was listed, and TransientError for an endpoint that cannot be reached.
    """
    with _opened(location, key) as (tree, client):
        files = _as_listed(_entries(tree, location, key, window, patterns), tree.root, location, key, window)
        if client is None:
            return [Located(entry.name, Path(tree.root, entry.name)) for entry in files]
        located = [(entry, _cached(client.meta.endpoint_url, tree.root, entry)) for entry in files]
        missing = [(entry, path) for entry, path in located if not _is_whole(path, entry.size)]
        if missing:
            with ThreadPoolExecutor(_DOWNLOADS) as threads:
                fixed = _listed.get() is not None  # here: the threads do not see it
                downloads = threads.map(lambda item: _download(client, tree.root, *item, fixed=fixed), missing)
                for _ in progress(downloads, len(missing), f"download {location}"):
                    pass
    return [Located(entry.name, path) for entry, path in located]


def listing(location: str, *, key: str, window: Window = ALWAYS, patterns: Sequence[str] = ()) -> list[dict[str, Any]]:
    """{path, bytes, sha256 or (S3) etag} of the files that `locate` gives, sorted by path; downloads nothing."""
    with _opened(location, key) as (tree, client):
        return [
            {"path": entry.name, "bytes": entry.size}
            | ({"etag": entry.etag} if client else {"sha256": sha256_file(Path(tree.root, entry.name))})
            for entry in _entries(tree, location, key, window, patterns)
        ]


@contextmanager
def _opened(location: str, key: str) -> Iterator[tuple[Tree, Any]]:
    """The location's tree, and the client, None for a local one; S3's errors inside name key and location."""
    if not _is_s3(location):
        yield _local_tree(location, key), None
        return
    where = f"params.yaml: {key}: {location}"
    client = s3.s3_client(where)
    with s3.explained(where):
        yield _s3_tree(client, location, key), client


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size  # a power failure may cut a file


def _entries(tree: Tree, location: str, key: str, window: Window, patterns: Sequence[str]) -> list[Entry]:
    """The entries; of tables, unless they were listed, lines on what is left out by its format or by its name."""
    here = contents(tree, location, key, window, patterns)
    if _listed.get() is not None or patterns != PATTERNS:
        return here.entries
    if here.doubtful:
        print(
            f"ingest: {location}: {len(here.doubtful):,} files or folders are left out, as the date in their name is"
            f" not from ingest.since to ingest.until, such as {min(here.doubtful)}; where it is not that of their rows,"
            " rename them",
            file=sys.stderr,
        )
    if here.unread:
        endings = ", ".join(pattern.removeprefix("*") for pattern in patterns)
        print(
            f"ingest: WARNING: {location}: {len(here.unread):,} files are of no format that is read, such as"
            f" {min(here.unread)}; they are left out: write them as one of {endings}",
            file=sys.stderr,
        )
    return here.entries


def _as_listed(available: list[Entry], root: str, location: str, key: str, window: Window) -> list[Entry]:
    """The entries that were listed; UserError for a listed one that is gone or another, and when none was listed."""
    if (listed := _listed.get()) is None:
        return available
    rows = {str(row["path"]): row for row in listed.get(key, ())}
    spans = [span for name in rows if (span := named_span(name))]
    if not rows or not all(span.overlaps(window) for span in spans):
        raise UserError(
            f"sources.json: not the files of {location} in the window ({key} of params.yaml); write it anew with"
            " `python -m steps.ingest --list`"
        )
    here = {entry.name: entry for entry in available}
    for name, row in rows.items():
        path = f"{'s3://' if _is_s3(location) else ''}{root.rstrip('/')}/{name}"
        if name not in here:
            raise UserError(f"{path} is gone since the run began; start a new run")
        etag = here[name].etag
        same = here[name].size == row["bytes"] and (
            etag == row.get("etag") if _is_s3(location) else sha256_file(Path(root, name)) == row.get("sha256")
        )
        if not same:
            raise _changed(path)
    if late := len(here) - len(rows):
        print(f"{location}: {late} files came after sources.json was written and are left out", file=sys.stderr)
    return [entry for entry in available if entry.name in rows]


def _changed(path: str) -> UserError:
    return UserError(f"{path} changed since the run began; start a new run")


def _is_s3(location: str) -> bool:
    return location.startswith("s3://")


def _local_tree(location: str, key: str) -> Tree:
    if "://" in location:
        raise UserError(
            f"params.yaml: {key}: {location!r} is neither local nor on s3://; name a path or s3://bucket/..."
        )
    root = Path(location)
    if os.path.isfile(root):  # noqa: PTH113 - Path's asks no further where a name is too long
        entry = Entry(root.name, root.stat().st_size, "")
        return Tree(str(root.parent), lambda folder: Below([], [entry]))
    if not os.path.isdir(root):  # noqa: PTH112
        raise UserError(f"params.yaml: {key}: no file or folder {location}; name another (DATA=... with make run)")
    return Tree(location, partial(_local_children, root), partial(_real, root))


def _local_children(root: Path, folder: str) -> Below:
    paths = list((root / folder).iterdir())
    return Below(
        [f"{folder}{path.name}/" for path in paths if path.is_dir()],
        [Entry(f"{folder}{path.name}", path.stat().st_size, "") for path in paths if path.is_file()],
        sorted(f"{folder}{path.name}" for path in paths if path.is_symlink() and not path.exists()),
    )


def _real(root: Path, name: str) -> str:
    """The absolute path that a name below the root stands for, all links followed; that of a folder ends in "/"."""
    return os.path.realpath(root / name) + "/" * (not name or name.endswith("/"))


def _s3_tree(client: Any, location: str, key: str) -> Tree:
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    if not bucket:
        raise UserError(f"params.yaml: {key}: {location!r} names no bucket; write s3://bucket/prefix")
    if prefix and not prefix.endswith("/"):
        first = client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents", [])
        if first and first[0]["Key"] == prefix:  # the location is one object
            root, slash, _ = prefix.rpartition("/")
            entry = _s3_entry(first[0], f"{root}{slash}")
            return Tree(f"{bucket}/{root}{slash}", lambda folder: Below([], [entry]))
        prefix += "/"
    return Tree(f"{bucket}/{prefix}", partial(_s3_children, client, bucket, prefix))


def _s3_children(client: Any, bucket: str, prefix: str, folder: str) -> Below:
    folders: list[str] = []
    files: list[Entry] = []
    pages = client.get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=bucket, Prefix=f"{prefix}{folder}", Delimiter="/"):
        folders += [item["Prefix"].removeprefix(prefix) for item in page.get("CommonPrefixes", [])]
        objects = (item for item in page.get("Contents", []) if not item["Key"].endswith("/"))  # folder markers
        files += [_s3_entry(item, prefix) for item in objects]
    return Below(folders, files)


def _s3_entry(item: dict[str, Any], prefix: str) -> Entry:
    return Entry(item["Key"].removeprefix(prefix), item["Size"], item["ETag"].strip('"'))


def _cached(endpoint: str, root: str, entry: Entry) -> Path:
    """Where an object of this ETag lies in the cache, under its own name, whose suffix tells its format."""
    digest = sha256_text("\0".join((endpoint, root, entry.name, entry.etag)))[:32]
    return cache_root() / "sources" / digest / Path(entry.name).name


def _download(client: Any, root: str, entry: Entry, path: Path, *, fixed: bool) -> None:
    from botocore.exceptions import ClientError

    bucket, _, prefix = root.partition("/")

    def write_body() -> None:
        with staging.open("wb") as handle:
            body = client.get_object(Bucket=bucket, Key=f"{prefix}{entry.name}", IfMatch=f'"{entry.etag}"')["Body"]
            for chunk in body.iter_chunks(_CHUNK):
                handle.write(chunk)

    with staged_file(path) as staging:
        try:
            s3.read_whole(write_body)
        except ClientError as error:
            if fixed and error.response["Error"]["Code"] in s3.CHANGED:
                raise _changed(f"s3://{root}{entry.name}") from None
            raise
