"""An index brought up to date: documents that are gone leave it, new and changed ones enter, the rest keep their codes.

Its last state lies under SLIMTOWER_CACHE. What an index is trained for (centroids, quantisers, rotation) is kept until
more than `index.retrain_after` of the vectors have changed since; then it is built anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steps.core.files import cache_root, read_json, staged_folder, write_json
from steps.core.params.index import IndexParams
from steps.index.build import fill, layers_of
from steps.index.inverted_lists import inverted_lists
from steps.index.vectors import CHUNK, Vectors


@dataclass(frozen=True)
class Previous:
    """An index as it was: `rows` holds, for each document of the present corpus, its row in there, or -1.

    `added`: documents that are new or changed; `removed`: those of the index that are gone or changed; `trained_on`,
    `changed`: as in Held.
    """

    index: faiss.Index
    factory: str
    rows: np.ndarray
    added: int
    removed: int
    trained_on: int
    changed: int

    @property
    def exchanged(self) -> int:
        """Vectors that come or go; one that changed counts once."""
        return max(self.added, self.removed)

    def drift(self) -> float:
        """Vectors changed since training, this time included, as a share of those trained on."""
        return (self.changed + self.exchanged) / self.trained_on


def state_folder(teacher: str, dataset: str, params: IndexParams) -> Path:
    """Cache folder of one data set's index: all that decides how it is trained is in its name."""
    knobs = params.model_dump(exclude={"target_recall", "recall_queries", "retrain_after", "semantic_ids"})
    settings = (teacher, dataset, sorted(knobs.items()), faiss.__version__)
    return cache_root() / "index" / sha256(repr(settings).encode()).hexdigest()[:24]


def load(folder: Path, doc_ids: list[str], digests: np.ndarray) -> Previous | None:
    """The state in `folder`, matched with the present documents by id and vector digest; None when there is none."""
    if not (folder / "state.json").is_file():
        return None
    state = read_json(folder / "state.json")
    table = pq.read_table(folder / "documents.parquet")
    known = {
        key: row for row, key in enumerate(zip(table["doc_id"].to_pylist(), table["digest"].to_pylist(), strict=True))
    }
    found = [known.get(key, -1) for key in zip(doc_ids, digests.tolist(), strict=True)]
    rows = np.array(found, dtype=np.int64)
    return Previous(
        index=faiss.read_index(str(folder / "ann.faiss")),
        factory=state["factory"],
        rows=rows,
        added=int((rows < 0).sum()),
        removed=len(known) - int((rows >= 0).sum()),
        trained_on=state["trained_on"],
        changed=state["changed"],
    )


@dataclass(frozen=True)
class Held:
    """What an index holds: document ids and vector digests in row order, and how it came to be.

    `trained_on`: vectors it held when it was trained; `changed`: vectors exchanged since.
    """

    doc_ids: list[str]
    digests: np.ndarray
    factory: str
    trained_on: int
    changed: int


def save(folder: Path, index: faiss.Index, held: Held) -> None:
    """Keep an index for the next run."""
    with staged_folder(folder) as staging:
        faiss.write_index(index, str(staging / "ann.faiss"))
        table = pa.table({"doc_id": held.doc_ids, "digest": pa.array(held.digests)})
        pq.write_table(table, staging / "documents.parquet")
        state = {"factory": held.factory, "trained_on": held.trained_on, "changed": held.changed}
        write_json(staging / "state.json", state)


def updated(previous: Previous, vectors: Vectors) -> faiss.Index:
    """The previous index over the present vectors, row i = vector i, with its training kept.

    Inverted lists and plain codes keep what they hold; graphs, and what else faiss cannot delete from, are filled anew.
    The previous index is used up.
    """
    rows = previous.rows
    if previous.removed == 0 and np.array_equal(rows, np.arange(len(rows))):
        return previous.index
    layers = layers_of(previous.index)
    ivf = inverted_lists(layers.base)
    in_place = ivf is not None
    plain = [part for part in (None if in_place else layers.base, layers.refine) if part is not None]
    if not all(isinstance(part, faiss.IndexFlatCodes) for part in plain):
        return fill(layers.empty(), vectors).index()
    if in_place:
        _exchange(layers.base, rows, vectors)
    for part in plain:
        _gather(part, rows, vectors)
    return layers.index()


def _exchange(base: Any, rows: np.ndarray, vectors: Vectors) -> None:
    """Delete from inverted lists what is gone, give the rest their present row numbers, add what is new."""
    renumbered = np.full(base.ntotal, -1, dtype=np.int64)
    kept = np.flatnonzero(rows >= 0)
    renumbered[rows[kept]] = kept
    gone = np.flatnonzero(renumbered < 0)
    if len(gone):
        base.remove_ids(gone)
    lists = inverted_lists(base).invlists
    for number in range(lists.nlist):
        size = lists.list_size(number)
        if size:
            ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
            ids[:] = renumbered[ids]
    for some, chunk in _new(rows, vectors):
        base.add_with_ids(chunk, some)


def _gather(index: Any, rows: np.ndarray, vectors: Vectors) -> None:
    """Bring the codes into the order of `rows`, and make those whose row is -1."""
    held = faiss.rev_swig_ptr(index.codes.data(), index.ntotal * index.code_size).reshape(index.ntotal, index.code_size)
    codes = np.empty((len(rows), index.code_size), dtype=np.uint8)
    kept = np.flatnonzero(rows >= 0)
    codes[kept] = held[rows[kept]]
    for some, chunk in _new(rows, vectors):
        codes[some] = index.sa_encode(chunk)
    index.reset()
    index.add_sa_codes(codes)


def _new(rows: np.ndarray, vectors: Vectors) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions and vectors of what the previous index lacks, a chunk at a time."""
    new = np.flatnonzero(rows < 0)
    for start in range(0, len(new), CHUNK):
        yield new[start : start + CHUNK], vectors.take(new[start : start + CHUNK])
