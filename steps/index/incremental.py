"""Which documents an earlier run has seen, and an index brought up to date with those that it has not.

Documents that are gone leave the index, new and changed ones enter, the rest keep their codes. Inverted lists, plain
codes (also those that candidates are re-ranked with) and graphs that only grow are changed in place; graphs that lose
documents, and what else faiss cannot delete from, are filled anew without training.
"""

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steps.index.build import layers_of
from steps.index.gpu import inverted_lists
from steps.index.inputs import Vectors


@dataclass(frozen=True)
class Match:
    """`rows`: each present document's previous row, -1 if it is new or changed; `previous_count`: documents before."""

    rows: np.ndarray
    previous_count: int

    @property
    def added(self) -> int:
        """Documents that are new or changed."""
        return int((self.rows < 0).sum())

    @property
    def removed(self) -> int:
        """Documents of before that are gone or changed."""
        return self.previous_count - int((self.rows >= 0).sum())

    @property
    def exchanged(self) -> int:
        """Vectors that come or go; one that changed counts once."""
        return max(self.added, self.removed)

    def unchanged(self) -> np.ndarray:
        """Present rows of the documents that were there before, with the same vector."""
        return np.flatnonzero(self.rows >= 0)

    def new(self) -> np.ndarray:
        """Present rows of the documents that are new or changed."""
        return np.flatnonzero(self.rows < 0)

    def moved(self) -> np.ndarray:
        """For each row of before its present row, or -1."""
        present_rows = np.full(self.previous_count, -1, dtype=np.int64)
        unchanged = self.unchanged()
        present_rows[self.rows[unchanged]] = unchanged
        return present_rows

    def nothing_new(self) -> bool:
        """Whether the same documents are in the same order."""
        return self.removed == 0 and np.array_equal(self.rows, np.arange(len(self.rows)))


def match(before_ids: pa.ChunkedArray, before: np.ndarray, doc_ids: pa.ChunkedArray, digests: np.ndarray) -> Match:
    """Match documents by id and vector digest (uint64)."""
    rows = pc.fill_null(pc.index_in(doc_ids, value_set=before_ids), -1).to_numpy().astype(np.int64)
    rows[before[rows] != digests] = -1
    return Match(rows, len(before))


def updated(index: faiss.Index, match: Match, vectors: Vectors) -> faiss.Index:
    """The index over the present vectors, row i = vector i, with its training kept; what was given is used up."""
    if match.nothing_new():
        return index
    layers = layers_of(index)
    for layer in (layers.base, layers.refine):
        if layer is None:
            continue
        if inverted_lists(layer) is not None:
            _exchange(layer, match, vectors)
        elif isinstance(_inner(layer), faiss.IndexFlatCodes):
            _gather(layer, match, vectors)
        elif isinstance(layer, faiss.IndexHNSW) and not match.removed:
            _extend(layer, match, vectors)
        else:
            layer.reset()
            for chunk in vectors.chunks():
                layer.add(chunk)
    return layers.index()


def _exchange(base: Any, match: Match, vectors: Vectors) -> None:
    """Delete from inverted lists what is gone, give the rest their present row numbers, add what is new."""
    moved = match.moved()
    removed = np.flatnonzero(moved < 0)
    if len(removed):
        base.remove_ids(removed)
    lists = faiss.downcast_InvertedLists(inverted_lists(base).invlists)
    if hasattr(lists, "n_per_block"):  # of codes that are compared in registers
        _clear_free_slots(lists)
    for number in range(lists.nlist):
        size = lists.list_size(number)
        if size:
            ids = faiss.rev_swig_ptr(lists.get_ids(number), size)
            ids[:] = moved[ids]
    for chunk_rows, chunk in vectors.at(match.new()):
        base.add_with_ids(chunk, chunk_rows)


def _clear_free_slots(lists: Any) -> None:
    """Set the free slots of each list's last block to zero: faiss adds codes by setting bits.

    In faiss 1.15.1 `remove_ids` leaves the bits of what left there.
    """
    slots, block_size = lists.n_per_block, lists.block_size
    zero_code = np.zeros(lists.packer.code_size, dtype=np.uint8)
    for number in range(lists.nlist):
        count = lists.list_size(number)
        if used := count % slots:
            blocks = faiss.rev_swig_ptr(lists.get_codes(number), (count // slots + 1) * block_size).reshape(
                -1, block_size
            )
            for slot in range(used, slots):
                lists.packer.pack_1(zero_code, slot, blocks[-1:])


def _gather(index: Any, match: Match, vectors: Vectors) -> None:
    """Bring the codes into the present order, and make those of new vectors."""
    inner = _inner(index)
    size = inner.code_size
    before = faiss.rev_swig_ptr(inner.codes.data(), inner.ntotal * size).reshape(inner.ntotal, size)
    codes = np.empty((len(match.rows), size), dtype=np.uint8)
    np.take(before, match.rows, axis=0, out=codes, mode="clip")  # rows of -1 are written below
    for chunk_rows, chunk in vectors.at(match.new()):
        codes[chunk_rows] = index.sa_encode(chunk)
    inner.reset()
    inner.add_sa_codes(codes)
    index.ntotal = inner.ntotal


def _extend(graph: Any, match: Match, vectors: Vectors) -> None:
    """Link new vectors into a graph and number its nodes as the present rows."""
    for _, chunk in vectors.at(match.new()):
        graph.add(chunk)
    order = match.rows.copy()
    order[match.new()] = np.arange(match.previous_count, len(order))
    if not np.array_equal(order, np.arange(len(order))):
        graph.permute_entries(order)


def _inner(index: Any) -> Any:
    while isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index
