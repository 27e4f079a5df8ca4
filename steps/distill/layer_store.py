"""The index teacher's states of layers, of texts and documents, read once and kept below SLIMTOWER_CACHE."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from slimtower.common.files import cache_root, staged_file
from slimtower.common.names import Role
from steps.core.code import code_digest
from steps.core.vector_store import Embeddings, Texts, VectorCache, text_key
from steps.core.versions import library_versions
from steps.distill.layer_pooling import LayerPooling, pooling_of, random_projection
from steps.distill.losses.base import LayerTargets
from steps.distill.losses.layer import products
from steps.distill.targets import ScoreTable
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import device, encode, load_tower
from steps.training.distributed import barrier, rank

_FORMAT = 1
_SHARD_TEXTS = 2048
_BATCH = 64


class LayerTeacher(ABC):
    """A teacher whose layers score documents: by their states, by scores that are stored, or as it trains along."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, np.ndarray]:
        """All that the scores follow from, besides weights."""

    def scores(self, rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]) -> LayerTargets:
        """What these layers, numbered from 0, give the documents for the texts, without gradient."""
        return self.layer_targets({}, rows, documents, layers)

    @abstractmethod
    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        """The same with all that a student needs; `tensors`: what a running teacher computed, or puts in its place."""


@dataclass(frozen=True)
class StateTable:
    """States of some rows' texts: `states` `(len(rows), layers, width)`, memory-mapped; `rows` sorted.

    `columns`: where the layers that are asked for stand among those; None = as they are.
    """

    rows: np.ndarray
    states: np.ndarray
    columns: Sequence[int] | None = None

    def of(self, rows: np.ndarray, positions: np.ndarray) -> Tensor:
        at = np.searchsorted(self.rows, rows)
        positions = positions if self.columns is None else np.array(self.columns)[positions]
        states = self.states[at[:, None], positions[None, :]]
        return torch.from_numpy(np.asarray(states, dtype=np.float32)).to(device())


@dataclass(frozen=True)
class StoredLayers(LayerTeacher):
    """Scores of a frozen dual encoder's layers: inner products of stored states."""

    layers: Sequence[int]  # those that are stored, numbered from 0
    texts: StateTable
    documents: StateTable
    key: bytes  # of the tower and of how it read them

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        key = np.frombuffer(self.key, dtype=np.uint8)
        return {"layers.key": key, "layers.texts": self.texts.rows, "layers.documents": self.documents.rows}

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        positions = np.searchsorted(np.array(self.layers), np.array(layers))
        states = self.documents.of(documents, positions)
        return compared(self.texts.of(rows, positions), states, states)


def compared(texts: Tensor, documents: Tensor, shared: Tensor | None = None) -> LayerTargets:
    """Scores of all documents: inner products of `(n, k, width)` and `(m, k, width)` states (LEAD, Eq. 1 and 4).

    `shared`: states of the documents for a student without its own.
    """
    scores = products(texts, documents)
    return LayerTargets(scores, torch.ones_like(scores[:, 0], dtype=torch.bool), shared)


@dataclass(frozen=True)
class ScoredLayers(LayerTeacher):
    """Scores of another teacher's layers, of any kind: those that the stage `score` stored (LEAD, Eq. 2 to 5)."""

    table: ScoreTable

    @property
    def depth(self) -> int:
        return int(self.table.values.shape[1])

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return {f"layers.{name}": array for name, array in vars(self.table).items()}

    def layer_targets(
        self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray, layers: Sequence[int]
    ) -> LayerTargets:
        values, is_scored = self.table.of(rows, documents)
        return LayerTargets(values[:, list(layers)], is_scored)


@dataclass(frozen=True)
class LayerReader:
    """Reads the states of some of the index teacher's layers, numbered from 0, what is cached not again.

    `folder`: its tower; `fingerprint`: the tower's id. With `state_dim` states are projected to so many dimensions.
    """

    folder: Path
    fingerprint: str
    layers: Sequence[int]
    state_dim: int
    precision: Precision

    @property
    def key(self) -> bytes:
        """Of the tower and of how it is read."""
        settings = (_FORMAT, self.fingerprint, tuple(self.layers), self.state_dim, resolve_precision(self.precision))
        made_by = code_digest("steps.encoders.towers", "steps.distill.layer_pooling"), *library_versions()
        return sha256(repr((*settings, *made_by)).encode()).digest()

    def documents(self, documents: Texts, rows: np.ndarray) -> StateTable:
        """States of the documents that have these row numbers, ascending."""
        return StateTable(rows, self._states("document", documents))

    def stored(self, texts: Texts, text_rows: np.ndarray, documents: Texts, document_rows: np.ndarray) -> StoredLayers:
        """States of the texts and of the documents that have these row numbers, ascending."""
        queries = StateTable(text_rows, self._states("query", texts))
        return StoredLayers(self.layers, queries, self.documents(documents, document_rows), self.key)

    def _states(self, role: Role, texts: Texts) -> np.ndarray:
        """States of the texts, float16 `(texts, layers, width)`, memory-mapped; rank 0 makes them."""
        folder = cache_root() / "layer_states" / self.key.hex()[:24] / role
        digest = sha256(b"".join(text_key(text) for text in texts)).hexdigest()
        file = folder / f"{digest[:32]}.npy"
        if rank() == 0 and not file.is_file():
            tower = self._tower(role)
            cache = VectorCache(folder, "float16")

            def read(chunk: list[str]) -> Embeddings:
                states = encode(tower, chunk, role, precision=self.precision, batch_size=_BATCH)
                return Embeddings(states, np.zeros(len(chunk), dtype=np.float32))

            longest = tower.max_seq_length or 0
            cache.fill(texts, read, _SHARD_TEXTS, f"distill: layers of {role} texts", longest)
            with staged_file(file) as staging:
                cache.write(texts, staging, tower.get_embedding_dimension() or 0)
        barrier()
        states = np.load(file, mmap_mode="r")
        return states.reshape(len(states), len(self.layers), -1)

    def _tower(self, role: Role) -> SentenceTransformer:
        """The tower of that role, which gives states of layers instead of embeddings."""
        tower = load_tower(self.folder, role)
        pooling = pooling_of(tower, "the teacher")
        projection = self.projection(int(pooling.get_embedding_dimension()))
        first: Any = tower[0]
        first.auto_model.config.output_hidden_states = True
        return SentenceTransformer(
            modules=[first, LayerPooling(pooling, self.layers, projection)],
            device=device(),
            prompts={name: text or "" for name, text in tower.prompts.items()},
            default_prompt_name=tower.default_prompt_name,
        ).eval()

    def projection(self, width: int) -> Tensor | None:
        """What its states of `width` are multiplied by, `(width, state_dim)`; None where they stay whole."""
        return random_projection(width, self.state_dim) if 0 < self.state_dim < width else None
