"""What an index is made of, documents and their vectors, and the queries that it is measured with."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.files import sha256_text
from slimtower.serving.dims import truncate
from steps.core.corpus import corpus_batches, corpus_template, digest_of, document_digest
from steps.core.tables import read_table

COLUMNS = ("doc_id", "title", "topic", "content")
CHUNK = 16384
Encode = Callable[[list[str]], np.ndarray]

RECALL_QUERIES = 500  # dev where there are any, with which recall is measured


@dataclass(frozen=True)
class Documents:
    """Of one data set, in the corpus' order: rows in the corpus, ids, hex sha256 of what was embedded; their digest."""

    rows: np.ndarray
    doc_ids: pa.ChunkedArray
    text_shas: pa.ChunkedArray
    digest: str

    def write(self, folder: Path) -> None:
        """Write `doc_ids.parquet`: the document of each row, and the sha256 of the text that was embedded."""
        table = pa.table({"doc_id": self.doc_ids, "text_sha": self.text_shas})
        pq.write_table(table, folder / "doc_ids.parquet", use_dictionary=False)


def read_documents(ingest: Path) -> dict[str, Documents]:
    """The documents of each data set by its name; the texts pass through memory a batch at a time."""
    rows: dict[str, list[np.ndarray]] = defaultdict(list)
    ids: dict[str, list[pa.Array]] = defaultdict(list)
    shas: dict[str, list[pa.Array]] = defaultdict(list)
    digests: dict[str, list[bytes]] = defaultdict(list)
    start, template = 0, corpus_template(ingest)
    for batch in corpus_batches(ingest, ["dataset", *COLUMNS]):
        names = np.array(batch["dataset"].to_pylist())
        for name in np.unique(names).tolist():
            positions = np.flatnonzero(names == name)
            dataset_batch = batch if len(positions) == len(names) else batch.take(pa.array(positions))
            fields = list(zip(*(dataset_batch[column].to_pylist() for column in COLUMNS), strict=True))
            rows[name].append(positions + start)
            ids[name].append(dataset_batch["doc_id"])
            shas[name].append(pa.array([sha256_text(template.text(*rest)) for _, *rest in fields]))
            digests[name].append(b"".join(document_digest(*document) for document in fields))
        start += batch.num_rows
    return {
        name: Documents(
            np.concatenate(rows[name]),
            pa.chunked_array(ids[name]),
            pa.chunked_array(shas[name]),
            digest_of(digests[name]),
        )
        for name in sorted(rows)
    }


@dataclass(frozen=True)
class Vectors:
    """Rows of `source` `(n, teacher's dim)`, truncated to their first `dim` dimensions."""

    source: np.ndarray
    rows: np.ndarray
    dim: int

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: np.ndarray | slice) -> np.ndarray:
        """The vectors at these positions, float32 `(positions, dim)`; not copied where they lie in one piece."""
        rows = self.rows[positions]
        together = len(rows) > 0 and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows)))
        return truncate(self.source[rows[0] : rows[0] + len(rows)] if together else self.source[rows], self.dim)

    def chunks(self) -> Iterator[np.ndarray]:
        """All vectors in order, at most CHUNK at a time."""
        for start in range(0, len(self), CHUNK):
            yield self.take(slice(start, start + CHUNK))

    def at(self, positions: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """These positions and their vectors, at most CHUNK at a time."""
        for start in range(0, len(positions), CHUNK):
            chunk_positions = positions[start : start + CHUNK]
            yield chunk_positions, self.take(chunk_positions)

    def slice(self, start: int, stop: int) -> "Vectors":
        """The vectors from position `start` to before `stop`."""
        return Vectors(self.source, self.rows[start:stop], self.dim)

    def sample(self, size: int, seed: int) -> np.ndarray:
        """At most `size` vectors in order, drawn by the seed, float32 `(sample, dim)`."""
        if size >= len(self):
            return self.take(slice(None))
        return self.take(np.sort(np.random.default_rng(seed).choice(len(self), size=size, replace=False)))

    def digests(self) -> np.ndarray:
        """uint64 `(n,)`: equal vectors have equal digests, different ones hardly ever."""
        factors = np.random.default_rng(0).integers(0, 2**64, size=self.dim, dtype=np.uint64) | np.uint64(1)
        digests = [np.einsum("ij,j->i", chunk.view(np.uint32), factors) for chunk in self.chunks()]
        return np.concatenate(digests) if digests else np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True)
class RecallQueries:
    """float32 `(n, teacher's dim)`, and where they come from: `dev` or `alignment`."""

    vectors: np.ndarray
    source: str


def recall_queries(
    queries: pa.Table, dataset: str, embed: Path, encode: Encode, limit: int, seed: int
) -> RecallQueries:
    """A seeded sample of a data set's dev queries, else of alignment texts.

    Of these its own queries, else those of no data set, else texts of its documents, else any.
    """
    texts = [row["text"] for row in queries.to_pylist() if row["dataset"] == dataset and row["split"] == "dev"]
    if texts:
        return RecallQueries(encode([texts[row] for row in _sample(len(texts), limit, seed)]), "dev")
    vectors = np.load(embed / "alignment.npy", mmap_mode="r")
    table = read_table(embed, "alignment_texts")
    are_queries = np.isin(np.array(table["part"].to_pylist()), ["train_queries", "unlabelled_queries"])
    source = np.array([name.partition("/")[0] for name in table["source_id"].to_pylist()])
    of_dataset, of_nobody = source == dataset, ~np.isin(source, pc.unique(queries["dataset"]).to_pylist())
    chosen = next(
        mask
        for mask in (
            are_queries & of_dataset,
            are_queries & of_nobody,
            of_dataset,
            np.ones(len(of_dataset), dtype=bool),
        )
        if mask.any()
    )
    rows = np.flatnonzero(chosen)
    return RecallQueries(np.asarray(vectors[rows[_sample(len(rows), limit, seed)]], dtype=np.float32), "alignment")


def _sample(count: int, limit: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).choice(count, size=min(count, limit), replace=False))
