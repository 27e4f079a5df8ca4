"""The index as it lies in a release: the same files, and the documents' titles beside them."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from steps.core.errors import UserError
from steps.core.release_checks import TITLES
from steps.core.tables import read_table


def copy_index(index: Path, target: Path) -> None:
    """Copy `index`, by hard links where the file system has them: every student's release shares one index."""
    shutil.copytree(index, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(os.path.realpath(source), target)  # DVC may have left a symbolic link
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
    return target


def write_titles(ingest: Path, index: Path, datasets: list[str]) -> None:
    """Write `<data set>/titles.parquet`: doc_id and title, in the order of the index's rows.

    UserError when the index holds a document that the corpus lacks.
    """
    corpus = read_table(ingest, "corpus")
    titles = dict(zip(corpus["doc_id"].to_pylist(), corpus["title"].to_pylist(), strict=True))
    for dataset in datasets:
        ids = pq.read_table(index / dataset / "doc_ids.parquet")["doc_id"].to_pylist()
        missing = next((doc_id for doc_id in ids if doc_id not in titles), None)
        if missing is not None:
            raise UserError(f"{index / dataset}: document {missing!r} is not in {ingest}; run `dvc repro index`")
        table = pa.table({"doc_id": ids, "title": [titles[doc_id] for doc_id in ids]})
        pq.write_table(table, index / dataset / TITLES, compression="zstd")
