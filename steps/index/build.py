"""Train and fill faiss indexes over inner products, a chunk of vectors in memory at a time.

An index in shards is trained once and filled shard by shard: into one index where its kind can, else they are searched
together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
from faiss.class_wrappers import add_to_referenced_objects

from slimtower.common.errors import UserError, line
from slimtower.common.files import sha256_file, sha256_text
from steps.index import gpu
from steps.index.gpu import C_INT, inverted_lists
from steps.index.inputs import Vectors
from steps.index.params import split_refine

# OPQ at faiss' own settings (8 bits, 50 iterations, 65536 points) trains for many minutes on one thread.
OPQ_BITS = 4
OPQ_ITERATIONS, OPQ_FIRST, OPQ_POINTS = 5, 10, 8192


@dataclass
class Layers:
    """What searches, what re-ranks its candidates (None without), and the faiss index that holds both, if any."""

    base: faiss.Index
    refine: faiss.Index | None
    combined: faiss.Index | None = None

    def index(self) -> faiss.Index:
        """Both as one index."""
        if self.combined is not None:
            self.combined.ntotal = self.base.ntotal
            return self.combined
        return self.base if self.refine is None else faiss.IndexRefine(self.base, self.refine)

    def empty(self) -> "Layers":
        """A copy that is trained alike and holds nothing; made through bytes, as faiss clones fewer kinds."""
        layers = [layer for layer in (self.base, self.refine) if layer is not None]
        copies = [faiss.deserialize_index(faiss.serialize_index(layer)) for layer in layers]
        for copy in copies:
            copy.reset()
        return Layers(copies[0], copies[1] if len(copies) > 1 else None)


def layers_of(index: faiss.Index) -> Layers:
    """The layers of an index, which still owns them."""
    if isinstance(index, faiss.IndexRefine):
        return Layers(faiss.downcast_index(index.base_index), faiss.downcast_index(index.refine_index), index)
    return Layers(index, None)


def trained(factory: str, vectors: Vectors, training_vectors: int, seed: int) -> Layers:
    """An empty index of the factory string, trained on a seeded sample; UserError when faiss cannot do that."""
    sample = vectors.sample(training_vectors, seed)
    with _refusals(f"{factory!r} cannot be trained on {len(sample)} vectors of {vectors.dim} dimensions"):
        layers = [_untrained(text, vectors.dim, seed) for text in split_refine(factory) if text]
        for layer in layers:
            if not layer.is_trained:
                gpu.train(layer, sample)
            for rotation in _rotations(layer):
                rotation.pq = None
    return Layers(layers[0], layers[1] if len(layers) > 1 else None)


def fill(layers: Layers, vectors: Vectors) -> Layers:
    """Add the vectors to both layers; they get the next row numbers."""
    for name in ("base", "refine"):
        if (layer := getattr(layers, name)) is not None:
            with _refusals(f"{type(layer).__name__} takes no vectors"):
                setattr(layers, name, gpu.add(layer, vectors.chunks))
    return layers


@contextmanager
def _refusals(problem: str) -> Iterator[None]:
    """UserError where faiss cannot do what a factory string asks for."""
    try:
        yield
    except RuntimeError as error:
        reason = line(error)[-200:]
        raise UserError(f"index.factory: {problem} ({reason}); choose another string, or an index.kind") from None


def flat(vectors: Vectors) -> faiss.Index:
    """Exact inner-product index."""
    return fill(Layers(faiss.IndexFlatIP(vectors.dim), None), vectors).index()


def _untrained(factory: str, dim: int, seed: int) -> faiss.Index:
    """An untrained index whose k-means starts from the seed."""
    index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    ivf = inverted_lists(index)
    for clustered in (ivf, index):
        if clustered is None:
            continue
        if hasattr(clustered, "cp"):
            clustered.cp.seed = seed % C_INT
        if hasattr(clustered, "pq"):
            clustered.pq.cp.seed = seed % C_INT
    for rotation in _rotations(index):
        quantiser = faiss.ProductQuantizer(rotation.d_out, rotation.M, OPQ_BITS)
        rotation.pq = quantiser
        add_to_referenced_objects(index, quantiser)  # rotation.pq is a bare pointer
        rotation.niter, rotation.niter_pq_0, rotation.max_train_points = OPQ_ITERATIONS, OPQ_FIRST, OPQ_POINTS
    return index


def _rotations(index: Any) -> list[Any]:
    """The OPQ rotations (Ge et al. 2013) that vectors pass before they enter the index."""
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    chain: Any = index.chain
    transforms = [faiss.downcast_VectorTransform(chain.at(position)) for position in range(chain.size())]
    return [transform for transform in transforms if isinstance(transform, faiss.OPQMatrix)]


def shard_slices(vectors: Vectors, shard_vectors: int) -> list[Vectors]:
    """The vectors in slices of `shard_vectors`, one a shard; 0 = all in one."""
    size = shard_vectors or len(vectors)
    return [vectors.slice(start, min(start + size, len(vectors))) for start in range(0, len(vectors), size)]


def mergeable(layers: Layers) -> bool:
    """Whether shards of this kind can become one index, as it holds nothing but codes."""
    stored_layers = [layers.base if inverted_lists(layers.base) is None else None, layers.refine]
    return all(isinstance(layer, faiss.IndexFlatCodes) for layer in stored_layers if layer is not None)


def build_shards(template: Layers, slices: list[Vectors]) -> Iterator[faiss.Index]:
    """Fill a trained, empty index, or a copy of it for each shard of a kind that cannot become one index."""
    if len(slices) == 1:
        yield fill(template, slices[0]).index()
    elif mergeable(template):
        yield (_merged(template, slices) if gpu.seen() else _filled_in_turn(template, slices)).index()
    else:
        for vectors in slices:
            yield fill(template.empty(), vectors).index()


def _filled_in_turn(template: Layers, slices: list[Vectors]) -> Layers:
    for vectors in slices:
        fill(template, vectors)
    return template


def _merged(template: Layers, slices: list[Vectors]) -> Layers:
    """All slices in one index, rows numbered on: each is a shard of its own until then, which a GPU can hold.

    Lists of 4-bit codes are not merged, as faiss 1.15.1 writes past their ends; it does not work on them on a GPU.
    """
    lists = inverted_lists(template.base)
    if lists is not None and hasattr(faiss.downcast_InvertedLists(lists.invlists), "n_per_block"):
        return _filled_in_turn(template, slices)
    shards = (fill(template.empty(), vectors) for vectors in slices)
    total = next(shards)
    for shard in shards:
        codes = inverted_lists(total.base) is None
        total.base.merge_from(shard.base, 0 if codes else total.base.ntotal)
        if total.refine is not None and shard.refine is not None:
            total.refine.merge_from(shard.refine, 0)
    return total


def write_shards(folder: Path, name: str, shards: Iterator[faiss.Index], several: bool) -> dict[str, Any]:
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
