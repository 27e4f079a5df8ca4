"""Files of a source by the location that params.yaml names: a local file or folder, or s3://bucket/prefix."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from steps.core.errors import UserError
from steps.ingest.locations import Located, locate
from steps.ingest.table_rows import PATTERNS
from steps.ingest.times import ALWAYS, Window

BEIR_PATTERNS = (
    "corpus.jsonl",
    "corpus.jsonl.gz",
    "queries.jsonl",
    "queries.jsonl.gz",
    "qrels/*.tsv",
    "qrels/*.tsv.gz",
)


def table_files(location: str, key: str, window: Window = ALWAYS) -> list[Located]:
    """The tables below a location, sorted by name, less those of dates outside the window; UserError for none."""
    return locate(location, key=key, since=window.since, until=window.until, patterns=PATTERNS)


def one_file(location: str, key: str) -> Path:
    """A single file, downloaded from an object store; a local one need not exist."""
    if not location.startswith("s3://"):
        return Path(location)
    found = locate(location, key=key, since="", until="")
    if len(found) != 1:
        raise UserError(f"params.yaml: {key}: {location} holds {len(found)} files; name one of them")
    return found[0].path


@contextmanager
def local_folder(location: str, key: str, patterns: Sequence[str]) -> Iterator[Path]:
    """The folder itself, or a temporary one of links to the downloaded files of an object store."""
    if not location.startswith("s3://"):
        yield Path(location)
        return
    with TemporaryDirectory() as scratch:
        for file in locate(location, key=key, since="", until="", patterns=patterns):
            link = Path(scratch) / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.path.resolve())
        yield Path(scratch)
