"""A tower's embeddings by content: a folder is of one tower, role, prompt, length, precision, code and libraries."""

from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from slimtower.common.files import cache_root
from slimtower.common.names import Role
from steps.core.code import code_digest
from steps.core.progress import progress
from steps.core.vector_store import Embeddings, Texts, VectorCache, new_array
from steps.core.versions import library_versions
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import encode_with_lengths, route
from steps.endpoint.module import Endpoint


def embed_once(
    tower: SentenceTransformer,
    fingerprint: str,
    role: Role,
    texts: Texts,
    target: Path,
    *,
    dtype: str,
    precision: Precision,
    batch_size: int,
    shard_texts: int,
    caption: str,
    lengths: Path | None = None,
    caches: Path | None = None,
) -> int:
    """Write a tower's vectors of texts as one `.npy` `(len(texts), dim)`, and their lengths; returns how many it read.

    Vectors are kept below SLIMTOWER_CACHE, or in `caches`, `shard_texts` at a time; an endpoint's answers as they come.
    """
    tower = route(tower, role)
    if isinstance(endpoint := tower[0], Endpoint):
        count = endpoint.announce(texts, tower.prompts.get(role) or "", caption)
        ask = partial(encode_with_lengths, tower, role=role)
        blocks = progress(_blocks(texts, shard_texts), -(-len(texts) // shard_texts), caption, endpoint.so_far)
        _write(map(ask, blocks), (len(texts), tower.get_embedding_dimension() or 0), target, dtype, lengths)
        return count
    settings = (fingerprint, role, tower.prompts.get(role), tower.max_seq_length, dtype)
    made_by = code_digest("steps.encoders.towers"), *library_versions()
    key = sha256(repr((*settings, resolve_precision(precision), *made_by)).encode()).hexdigest()
    cache = VectorCache((caches or cache_root() / "vectors") / key[:24], dtype)
    encode = partial(encode_with_lengths, tower, role=role, precision=precision, batch_size=batch_size)
    count = cache.fill(texts, encode, shard_texts, caption, tower.max_seq_length or 0)
    cache.write(texts, target, tower.get_embedding_dimension() or 0, lengths)
    return count


def _blocks(texts: Texts, size: int) -> Iterator[list[str]]:
    stream = iter(texts)
    while block := list(islice(stream, size)):
        yield block


def _write(
    blocks: Iterable[Embeddings], shape: tuple[int, int], target: Path, dtype: str, lengths: Path | None
) -> None:
    vectors = new_array(target, dtype, shape)
    norms, start = np.zeros(len(vectors), dtype=np.float32), 0
    for embedded in blocks:
        rows = slice(start, start + len(embedded.lengths))
        vectors[rows], norms[rows] = embedded.vectors, embedded.lengths
        start += len(embedded.lengths)
    vectors.flush()
    if lengths:
        np.save(lengths, norms)
