"""Documents among the alignment texts are read once: their vectors are the index's, if the teacher reads both alike."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

from steps.encoders.towers import endpoint_of

_BATCH = 256  # documents whose tokens are in memory at once


def rows_read_alike(
    tower: SentenceTransformer, texts: pa.Table, doc_ids: Iterable[str], documents: Iterable[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of alignment texts of which the tower reads the tokens that it reads of a document, and the documents' rows.

    Texts are cut to a number of words, and the tower may read fewer tokens of both. There is no such row if queries and
    documents have prompts, routes or a server of their own.
    """
    alike: tuple[list[int], list[int]] = [], []
    prompt = tower.prompts.get("query") or ""
    if prompt == (tower.prompts.get("document") or "") and not (
        isinstance(tower[0], Router) or endpoint_of(tower, "query")
    ):
        columns = (texts[name].to_pylist() for name in ("part", "source_id", "text"))
        parts = enumerate(zip(*columns, strict=True))
        of_document = {source: (row, text) for row, (part, source, text) in parts if part == "documents"}
        batch: list[tuple[int, int, str, str]] = []
        for doc_row, (doc_id, document) in enumerate(zip(doc_ids, documents, strict=True)):
            if doc_id in of_document:
                row, text = of_document[doc_id]
                batch.append((row, doc_row, prompt + text, prompt + document))
            if len(batch) == _BATCH:
                _add_equal(tower, batch, alike)
                batch = []
        _add_equal(tower, batch, alike)
    return np.array(alike[0], dtype=np.int64), np.array(alike[1], dtype=np.int64)


def _add_equal(
    tower: SentenceTransformer, batch: list[tuple[int, int, str, str]], alike: tuple[list[int], list[int]]
) -> None:
    if not batch:
        return
    rows, doc_rows, texts, documents = (list(column) for column in zip(*batch, strict=True))
    for row, doc_row, first, second in zip(rows, doc_rows, _read(tower, texts), _read(tower, documents), strict=True):
        if first == second:
            alike[0].append(row)
            alike[1].append(doc_row)


def _read(tower: SentenceTransformer, texts: list[str]) -> list[str] | list[list[int]]:
    """The tokens that a transformer reads of each text; of a tower without a limit the text."""
    if not hasattr(tower[0], "auto_model"):
        return texts
    tokens = tower.tokenizer(texts, truncation=True, max_length=tower.max_seq_length)["input_ids"]
    return [list(ids) for ids in tokens]


def join(folder: Path, rows: np.ndarray, doc_rows: np.ndarray) -> None:
    """Put the vectors and lengths of documents `doc_rows` among those of the other texts, at `rows`.

    `alignment.npy` and `alignment_lengths.npy` hold the others in their order, and then all, the lengths as
    `lengths.npy`. `documents_lengths.npy`, if it is there, is removed.
    """
    for name, target in (("", "alignment"), ("_lengths", "lengths")):
        source = folder / f"alignment{name}.npy"
        if len(rows):
            others, documents = (
                np.load(folder / f"{kind}{name}.npy", mmap_mode="r") for kind in ("alignment", "documents")
            )
            joined = np.empty((len(others) + len(rows), *others.shape[1:]), dtype=others.dtype)
            joined[np.setdiff1d(np.arange(len(joined)), rows)] = others
            joined[rows] = documents[doc_rows]
            np.save(source, joined)
        source.rename(folder / f"{target}.npy")
    (folder / "documents_lengths.npy").unlink(missing_ok=True)
