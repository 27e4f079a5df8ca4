"""The documents nearest to each alignment text, by the similarity of the index's teacher."""

import sys

import faiss
import numpy as np

from steps.core.progress import progress

_TEXTS = 4096  # searched at once
_DOCUMENTS = 50_000  # among which nearest documents are sought; a seeded sample of a larger corpus


def nearest_documents(vectors: np.ndarray, documents: np.ndarray, count: int, seed: int, *, cosine: bool) -> np.ndarray:
    """Rows of the `count` documents most like each of the `(texts, dim)` vectors, best first: int32 `(texts, count)`.

    Documents `(n, dim)`; of more than 50,000 a seeded sample is searched. Where there are fewer than `count`, all are
    taken and a line on stderr says so.
    """
    most = min(len(documents), _DOCUMENTS)
    if count > most:
        print(f"embed: neighbours is {count}, but there are {most} documents: takes them all", file=sys.stderr)
        count = most
    found = np.zeros((len(vectors), count), dtype=np.int32)
    if not count:
        return found
    rows = np.arange(len(documents), dtype=np.int32)
    if len(rows) > _DOCUMENTS:
        rows = np.sort(np.random.default_rng((seed, 4)).choice(rows, size=_DOCUMENTS, replace=False))
    searched = np.array(documents[rows], dtype=np.float32)
    if cosine:
        faiss.normalize_L2(searched)
    index = faiss.IndexFlatIP(documents.shape[1])
    index.add(searched)
    starts = range(0, len(vectors), _TEXTS)
    for start in progress(starts, len(starts), "nearest documents"):
        asked = np.ascontiguousarray(vectors[start : start + _TEXTS], dtype=np.float32)
        found[start : start + _TEXTS] = rows[index.search(asked, count)[1]]
    return found
