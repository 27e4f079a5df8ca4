"""A new model over the index that an old one made: the new encoder, frozen, and a linear map into the old space."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.core.corpus import CorpusTexts
from steps.distill.initialisation import ending_like
from steps.distill.params import DistillParams
from steps.distill.sources import Sources
from steps.encoders.bases import resolve_base
from steps.encoders.batch_check import check_tower_batches
from steps.encoders.towers import check_fast, check_whole, load_tower
from steps.encoders.vector_cache import embed_once

_DOCUMENTS = 4096  # on which the map is fitted, drawn by seed
_RIDGE = 1e-3  # of the mean variance of the index's dimensions: one that hardly varies says little


def adapted(name: str, teacher: SentenceTransformer, sources: Sources, params: DistillParams) -> SentenceTransformer:
    """The encoder with weights that stay, and a map A `(teacher's dim, its dim)` that trains on (Drift-Adapter's LA,
    arXiv:2509.23471, without its low rank).

    A starts where it gives the old index the new model's scores. Of some documents, n being the encoder's vector and o
    that of the index, `sum ||A^T o + b - n||^2` is least; so `(A q)^T o = q^T (A^T o)` is about `q^T n - q^T b`, and
    the last term is the same for all documents of a query. UserError for what is no transformer, or has a query prompt.
    """
    folder = Path(resolve_base(name))
    tower = load_tower(folder, "query")
    check_whole(tower, f"distill.student: adapter {name}")
    if tower.similarity_fn_name not in {"cosine", "dot"}:
        raise UserError(
            f"distill.student: adapter {name}: compares by {tower.similarity_fn_name}, and the index by inner product;"
            " name an encoder that compares by cosine or dot product"
        )
    if not isinstance(tower[0], Transformer):
        raise UserError(f"distill.student: adapter {name}: its first module is no transformer; name a local encoder")
    check_fast(getattr(tower[0], "tokenizer", None), f"distill.student: adapter {name}")
    check_tower_batches(tower, f"distill.student: adapter {name}")
    if prompt := tower.prompts.get("query"):
        raise UserError(
            f"distill.student: adapter {name}: reads queries with the prompt {prompt!r}, and students read bare text;"
            " take it off distill.students, or start from `base`, which learns to do without"
        )
    start = _fitted(folder, teacher, sources, params)
    tower.requires_grad_(False)
    linear = Dense(start.shape[1], start.shape[0], bias=False, activation_function=nn.Identity())
    with torch.no_grad():
        linear.linear.weight.copy_(torch.from_numpy(start))
    modules = [module for module in tower if not isinstance(module, Normalize)]  # a length changes no order
    return ending_like(teacher, [*modules, linear.to(tower.device)])


def _fitted(folder: Path, teacher: SentenceTransformer, sources: Sources, params: DistillParams) -> np.ndarray:
    """A, float32, as long as an orthogonal matrix. What `score` embedded with this encoder is not embedded again."""
    encoder, count = load_tower(folder, "document"), len(sources.documents)
    sample = np.random.default_rng((params.seed, 8)).choice(count, min(count, _DOCUMENTS), replace=False)
    rows = np.sort(sample)
    with TemporaryDirectory(prefix="adapter.") as scratch:
        target = Path(scratch) / "documents.npy"
        embed_once(
            encoder,
            fingerprint(folder).id,
            "document",
            CorpusTexts(sources.ingest, rows),
            target,
            dtype="float32",
            precision=params.precision,
            batch_size=64,
            shard_texts=1024,
            caption="embed documents",
        )
        new = _compared(np.load(target), encoder)
    old = _compared(np.asarray(sources.documents[rows], dtype=np.float32), teacher)
    for vectors in (old, new):
        if np.linalg.norm(vectors - vectors.mean(axis=0)) <= 1e-6 * np.linalg.norm(vectors):  # but for rounding
            raise UserError(
                f"distill.student: adapter {folder}: all {count} documents have one vector, to which no map can be"
                " fitted; take it off distill.students"
            )
    old, new = old - old.mean(axis=0), new - new.mean(axis=0)
    products = old.T @ old
    ridge = _RIDGE * np.trace(products) / len(products) * np.eye(len(products))
    matrix = np.linalg.solve(products + ridge, old.T @ new)
    return np.asarray(matrix * np.sqrt(min(matrix.shape)) / np.linalg.norm(matrix), dtype=np.float32)


def _compared(vectors: np.ndarray, tower: SentenceTransformer) -> np.ndarray:
    """Vectors `(n, dim)` as inner products compare them: of length 1 where the tower compares by cosine."""
    vectors = vectors.astype(np.float64)
    if tower.similarity_fn_name != "cosine":
        return vectors
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
