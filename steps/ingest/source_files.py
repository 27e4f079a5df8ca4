"""Files of a source by the location that params.yaml names: a local file or folder, or s3://bucket/prefix."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from slimtower.common.errors import UserError
from steps.ingest.locations import Located, is_fixed, local_files, locate
from steps.ingest.table_rows import PATTERNS
from steps.ingest.times import ALWAYS, Window

BEIR_PATTERNS = (
    "corpus.jsonl",
    "corpus.jsonl.gz",
    "queries.jsonl",
    "queries.jsonl.gz",
    "answers.jsonl",
    "answers.jsonl.gz",
    "qrels/*",  # one that is no .tsv is refused
)


def table_files(location: str, key: str, window: Window = ALWAYS) -> list[Located]:
    """The tables below a location, sorted by name, less those of dates outside the window.

    UserError for none, and for a table that is there plain and as `.gz`: its rows would count twice.
    """
    files = locate(location, key=key, since=window.since, until=window.until, patterns=PATTERNS)
    packed = {_plain(file.name[:-3]): file.name for file in files if file.name.lower().endswith(".gz")}
    for file in files:
        if packed_name := packed.get(_plain(file.name)):
            raise UserError(
                f"params.yaml: {key}: {location}: {packed_name} lies beside {file.name}; remove one of them"
            )
    return files


def _plain(name: str) -> str:
    """The name, its ending in lower case."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}{dot}{ending.lower()}"


def one_file(location: str, key: str) -> Path:
    """A single file, downloaded from an object store; a local one need not exist where any file may be read."""
    if not location.startswith("s3://") and not is_fixed():
        return Path(location)
    files = locate(location, key=key, since="", until="")
    if len(files) != 1:
        raise UserError(f"params.yaml: {key}: {location} holds {len(files)} files; name one of them")
    return files[0].path


@contextmanager
def local_folder(location: str, key: str, patterns: Sequence[str]) -> Iterator[Path]:
    """The folder itself, or a temporary one of links to the files that may be read or came from an object store."""
    local = not location.startswith("s3://")
    if local and not is_fixed():
        yield Path(location)
        return
    files = locate(location, key=key, since="", until="", patterns=patterns)
    if local and len(files) == local_files(location, key=key, patterns=patterns):
        yield Path(location)
        return
    with TemporaryDirectory() as scratch:
        for file in files:
            link = Path(scratch) / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.path.resolve())
        yield Path(scratch)
