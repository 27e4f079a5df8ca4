"""The index teacher's states of layers, of texts and documents, read once and kept below SLIMTOWER_CACHE."""

from collections.abc import Sequence
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
from steps.distill.layer_teachers import StateTable
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import encode, load_tower, tower_of
from steps.training.distributed import barrier, rank

_SHARD_TEXTS = 2048
_BATCH = 64


@dataclass(frozen=True)
class LayerReader:
    """Reads, and caches, states of layers, from 0, of the tower in `folder`; `state_dim` projects them, 0 = not."""

    folder: Path
    fingerprint: str
    layers: Sequence[int]
    state_dim: int
    precision: Precision

    @property
    def key(self) -> bytes:
        """Of the tower and of how it is read."""
        settings = (self.fingerprint, tuple(self.layers), self.state_dim, resolve_precision(self.precision))
        made_by = code_digest("steps.encoders.towers", "steps.distill.layer_pooling"), *library_versions()
        return sha256(repr((*settings, *made_by)).encode()).digest()

    def table(self, role: Role, texts: Texts, rows: np.ndarray) -> StateTable:
        """States of texts that have these row numbers, ascending."""
        return StateTable(rows, self._states(role, texts))

    def _states(self, role: Role, texts: Texts) -> np.ndarray:
        folder = cache_root() / "layer_states" / self.key.hex()[:24] / role
        digest = sha256(b"".join(text_key(text) for text in texts)).hexdigest()
        file = folder / f"{digest[:32]}.npy"
        if rank() == 0 and not file.is_file():
            with torch.random.fork_rng():  # loading may draw, and who finds the file, or is another rank, loads nothing
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
        tower = load_tower(self.folder, role)
        pooling = pooling_of(tower, "the teacher")
        projection = self.projection(int(pooling.get_embedding_dimension()))
        first: Any = tower[0]
        first.auto_model.config.output_hidden_states = True
        return tower_of([first, LayerPooling(pooling, self.layers, projection)], tower).eval()

    def projection(self, width: int) -> Tensor | None:
        """What its states of `width` are multiplied by, `(width, state_dim)`; None where they stay whole."""
        return random_projection(width, self.state_dim) if 0 < self.state_dim < width else None
