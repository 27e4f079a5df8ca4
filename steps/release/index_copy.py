"""The index as it lies in a release: the same files, and the documents' titles beside them."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from slimtower.serving.checks import TITLES
from steps.core.corpus import corpus_batches


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

    In memory are the ids and titles of one data set, as they are where a release answers. UserError when the index
    holds a document that the corpus lacks.
    """
    for dataset in datasets:
        corpus = pa.Table.from_batches(
            [
                batch.filter(pc.equal(batch["dataset"], dataset)).select(["doc_id", "title"])
                for batch in corpus_batches(ingest, ["doc_id", "dataset", "title"])
            ]
        )
        ids = pq.read_table(index / dataset / "doc_ids.parquet", columns=["doc_id"])["doc_id"]
        rows = pc.index_in(ids, value_set=corpus["doc_id"])
        if rows.null_count:
            missing = ids.filter(pc.is_null(rows))[0].as_py()
            raise UserError(f"{index / dataset}: document {missing!r} is not in {ingest}; run `dvc repro index`")
        table = pa.table({"doc_id": ids, "title": corpus["title"].take(rows)})
        pq.write_table(table, index / dataset / TITLES, compression="zstd")
