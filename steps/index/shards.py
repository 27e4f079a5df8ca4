"""An index in shards: trained once, filled shard by shard, merged where its kind can be, else searched together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss

from slimtower.common.files import sha256_file, sha256_text
from steps.index.build import Layers, fill
from steps.index.gpu import inverted_lists
from steps.index.vectors import Vectors


def slices(vectors: Vectors, shard_vectors: int) -> list[Vectors]:
    """The vectors in slices of `shard_vectors`, one a shard; 0 = all in one."""
    size = shard_vectors or len(vectors)
    return [vectors.slice(start, min(start + size, len(vectors))) for start in range(0, len(vectors), size)]


def mergeable(layers: Layers) -> bool:
    """Whether shards of this kind can become one index by copying codes."""
    stored_layers = [layers.base if inverted_lists(layers.base) is None else None, layers.refine]
    return all(isinstance(layer, faiss.IndexFlatCodes) for layer in stored_layers if layer is not None)


def build(template: Layers, slices: list[Vectors]) -> Iterator[faiss.Index]:
    """Fill copies of a trained, empty index: one index when there is one slice or the kind merges, else one a shard."""
    if len(slices) == 1:
        yield fill(template, slices[0]).index()
    elif mergeable(template):
        yield merged(fill(template.empty(), vectors) for vectors in slices).index()
    else:
        for vectors in slices:
            yield fill(template.empty(), vectors).index()


def merged(shards: Iterator[Layers]) -> Layers:
    """All shards in one, rows numbered on; a shard is empty after its merge."""
    total = next(shards)
    for shard in shards:
        codes = inverted_lists(total.base) is None
        total.base.merge_from(shard.base, 0 if codes else total.base.ntotal)
        if total.refine is not None and shard.refine is not None:
            total.refine.merge_from(shard.refine, 0)
    return total


def write(folder: Path, name: str, shards: Iterator[faiss.Index], several: bool) -> dict[str, Any]:
    """Write `<name>.faiss`, or `<name>.0000.faiss` and so on; returns their digests and size for the manifest."""
    digests: dict[str, str] = {}
    size = 0
    for shard in shards:
        number = len(digests)
        path = folder / (f"{name}.{number:04}.faiss" if several else f"{name}.faiss")
        faiss.write_index(shard, str(path))
        digests[path.name] = sha256_file(path)
        size += path.stat().st_size
        del shard  # before the next one is built
    if not several:
        return {"sha256": digests[f"{name}.faiss"], "bytes": size}
    return {"sha256": sha256_text("".join(digests.values())), "bytes": size, "shards": digests}
