"""The identity of a corpus, and its documents a batch at a time: their texts need not fit into memory."""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.document_texts import DocumentTemplate, template_of
from slimtower.common.errors import UserError
from steps.core.tables import row_count, table_path

_DOCUMENTS, _BYTES = 4096, 2**20  # documents in memory at once, and compressed bytes of each column


def document_digest(doc_id: str, title: str, topic: str, content: str) -> bytes:
    """sha256 of a document, 32 bytes; the lengths in front tell where each field ends."""
    text = f"{len(doc_id)} {len(title)} {len(topic)} {doc_id}{title}{topic}{content}"
    return hashlib.sha256(text.encode("utf-8")).digest()


def digest_of(documents: Iterable[bytes]) -> str:
    """Hex sha256 over the sorted digests of a corpus' documents; those of several may come as one."""
    joined = b"".join(documents)
    return hashlib.sha256(np.sort(np.frombuffer(joined, dtype="S32")).tobytes() if joined else b"").hexdigest()


def corpus_digest(documents: Iterable[tuple[str, str, str, str]]) -> str:
    """The same over (doc_id, title, topic, content) in any order."""
    return digest_of(document_digest(*fields) for fields in documents)


def corpus_batches(ingest: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of the table `corpus` in `ingest`, in its order, a few thousand documents at a time.

    UserError when the table is missing or of another schema.
    """
    with pq.ParquetFile(table_path(ingest, "corpus"), buffer_size=_BYTES) as table:
        yield from table.iter_batches(_DOCUMENTS, columns=list(columns))


def corpus_columns(ingest: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The same, document by document."""
    for batch in corpus_batches(ingest, columns):
        yield from zip(*(batch[name].to_pylist() for name in columns), strict=True)


def rows_by_dataset(ingest: Path) -> list[np.ndarray]:
    """Rows of the documents of each data set, ascending; data sets in the order in which the corpus has them."""
    column = pa.chunked_array([batch.column(0) for batch in corpus_batches(ingest, ["dataset"])])
    names = column.combine_chunks().dictionary_encode()
    codes = names.indices.to_numpy()
    return [np.flatnonzero(codes == code) for code in range(len(names.dictionary))]


class CorpusRows:
    """The same, read anew by every loop over it."""

    def __init__(self, ingest: Path, columns: Sequence[str]) -> None:
        self.ingest, self.columns = ingest, columns

    def __len__(self) -> int:
        return row_count(self.ingest, "corpus")

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return corpus_columns(self.ingest, self.columns)


class CorpusTexts:
    """The texts of the corpus in `ingest` as a document tower reads them, read anew by every loop over them."""

    def __init__(self, ingest: Path, chosen: np.ndarray | None = None) -> None:
        """`chosen`: rows of the documents, ascending; None = all."""
        self.template, self.rows = corpus_template(ingest), CorpusRows(ingest, ["title", "topic", "content"])
        self.chosen = np.ones(len(self.rows), dtype=bool) if chosen is None else np.zeros(len(self.rows), dtype=bool)
        if chosen is not None:
            self.chosen[chosen] = True

    def __len__(self) -> int:
        return int(self.chosen.sum())

    def __iter__(self) -> Iterator[str]:
        return (self.template.text(*fields) for fields in compress(self.rows, self.chosen))


def corpus_template(ingest: Path) -> DocumentTemplate:
    """That of the table `corpus` in `ingest`; UserError when the table is missing or of another schema."""
    return template_of(pq.read_schema(table_path(ingest, "corpus")))


def texts_of(ingest: Path, doc_ids: Iterable[str]) -> dict[str, str]:
    """Text of each document as a ranker reads it; those that the corpus in `ingest` lacks are left out."""
    selected, template = set(doc_ids), corpus_template(ingest)
    return {
        doc_id: template.text(*fields)
        for doc_id, *fields in corpus_columns(ingest, ["doc_id", "title", "topic", "content"])
        if doc_id in selected
    }


def check_documents(doc_ids: Iterable[str], known: Container[str], where: Path) -> None:
    """UserError when a candidate is not among the `known` ones of the corpus of `where`."""
    missing = next((doc_id for doc_id in doc_ids if doc_id not in known), None)
    if missing is not None:
        raise UserError(
            f"candidates: document {missing!r} is not in the tables of {where}; run ingest and candidates again so that"
            " both come from the same data"
        )


def random_documents(ingest: Path, counts: Mapping[str, int], seed: int) -> dict[str, list[str]]:
    """Ids of as many documents of each data set as `counts` says, drawn with replacement."""
    random = np.random.default_rng(seed)
    corpus = pq.read_table(table_path(ingest, "corpus"), columns=["doc_id", "dataset"])
    sample: dict[str, list[str]] = {}
    for dataset, count in sorted(counts.items()):
        ids = corpus.filter(pc.equal(corpus["dataset"], dataset))["doc_id"]
        sample[dataset] = ids.take(random.integers(len(ids), size=count)).to_pylist()
    return sample
