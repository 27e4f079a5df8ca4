"""A sound BEIR folder, and such folders with some of their files replaced."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toy_source import read_toy

from steps.ingest.kinds.beir import BeirSource
from steps.ingest.rejects import Rejects
from steps.ingest.source import SourceData


def lines(*rows: Any) -> bytes:
    """Lines of JSON; bytes are lines as they are."""
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def qrels(*rows: tuple[Any, ...]) -> bytes:
    """A file of judgements under BEIR's header."""
    return "".join("\t".join(map(str, row)) + "\n" for row in (("query-id", "corpus-id", "score"), *rows)).encode()


def sound_folder(folder: Path, replaced: Mapping[str, bytes | None] | None = None) -> Path:
    """Write 30 documents and queries (20 train, 10 test), some files replaced (None: left out)."""
    files: dict[str, bytes | None] = {
        "corpus.jsonl": lines(*({"_id": f"d{n}", "title": f"t{n}", "text": f"text {n}"} for n in range(30))),
        "queries.jsonl": lines(*({"_id": f"q{n}", "text": f"question {n}"} for n in range(30))),
        "qrels/train.tsv": qrels(*((f"q{n}", f"d{n}", 1) for n in range(20))),
        "qrels/test.tsv": qrels(*((f"q{n}", f"d{n}", 2) for n in range(20, 30))),
    }
    for name, content in (files | dict(replaced or {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def read(folder: Path, *, seed: int = 3, ratio: float = 0.5) -> tuple[SourceData, Rejects]:
    """What the folder gives as the data set `toy`, and what was rejected."""
    return read_toy(BeirSource(kind="beir", name="toy", path=str(folder)), seed=seed, ratio=ratio)


def reasons(rejects: Rejects, source: str) -> list[tuple[int, str]]:
    """(line, reason) of a file's rejects."""
    return [(row.line, row.reason) for row in rejects.rows if row.source == source]
