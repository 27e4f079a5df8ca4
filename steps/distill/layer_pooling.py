"""States of a transformer's layers, each pooled as the tower pools its last one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from slimtower.common.errors import UserError


class LayerPooling(nn.Module):
    """In place of a pooling: its states of some layers, from 0, end to end, each multiplied by any `projection`."""

    def __init__(self, pooling: Pooling, layers: Sequence[int], projection: Tensor | None = None) -> None:
        super().__init__()
        self.pooling, self.layers = pooling, tuple(layers)
        self.projection: Tensor | None
        self.register_buffer("projection", projection)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        states = pooled_states(self.pooling, features, self.layers)
        if self.projection is not None:
            states = states.float() @ self.projection
        return features | {"sentence_embedding": states.flatten(1)}

    def get_embedding_dimension(self) -> int:
        pooled = int(self.pooling.get_embedding_dimension())
        return len(self.layers) * (pooled if self.projection is None else self.projection.shape[1])


def pooled_states(pooling: nn.Module, features: Mapping[str, Any], layers: Sequence[int]) -> Tensor:
    """Pooled states of these layers, numbered from 0, `(n, len(layers), pooled)`; the embedding layer has no number."""
    states = features["all_layer_embeddings"]
    return torch.stack(
        [pooling({**features, "token_embeddings": states[1 + layer]})["sentence_embedding"] for layer in layers], dim=1
    )


def pooling_of(tower: SentenceTransformer, whose: str) -> Pooling:
    """The pooling that follows a tower's transformer; UserError for a tower that is made otherwise."""
    modules = list(tower)
    if len(modules) < 2 or not isinstance(modules[0], Transformer) or not isinstance(modules[1], Pooling):
        names = [type(module).__name__ for module in modules]
        raise UserError(
            f"distill.student: layer_distillation pools the states of {whose}'s layers, but its modules are {names};"
            " it takes a transformer with a pooling"
        )
    return modules[1]


def depth_of(tower: SentenceTransformer) -> int:
    """How many layers its transformer has."""
    first: Any = tower[0]
    return int(first.auto_model.config.num_hidden_layers)


def random_projection(width: int, target: int) -> Tensor:
    """`(width, target)` of seeded normal numbers, by which inner products are kept in the mean: the same for all."""
    normal = np.random.default_rng((width, target)).standard_normal((width, target))
    return torch.from_numpy((normal / np.sqrt(target)).astype(np.float32))
