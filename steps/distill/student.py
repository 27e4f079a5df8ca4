"""What every student is: a query tower under training, with and without its final normalisation."""

from abc import ABC, abstractmethod

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn
from torch.nn import functional

from steps.distill.tokens import Tokens


def readable_tokens(limit: int, *towers: SentenceTransformer) -> int:
    """`limit`, or fewer tokens if one of the towers reads no more; a tower without a limit of its own reads all."""
    return int(min(limit, *(tower.max_seq_length or limit for tower in towers)))


class Student(ABC):
    """A query tower under training; `pads`: whether a text costs as much as the longest of its batch."""

    pads: bool

    def __init__(self, tower: SentenceTransformer) -> None:
        self.tower = tower
        modules: list[nn.Module] = list(tower)
        self.normalises = isinstance(modules[-1], Normalize)
        self.modules = modules[:-1] if self.normalises else modules

    @abstractmethod
    def tokenize(self, texts: list[str], max_length: int) -> Tokens:
        """The texts' tokens, cut to `max_length`."""

    @abstractmethod
    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows' texts before the final normalisation, `(len(rows), dim)`, with gradient."""

    @abstractmethod
    def token_rows(self) -> nn.Parameter:
        """The embeddings of its tokens, `(vocabulary, hidden size)`."""

    @abstractmethod
    def finish(self) -> None:
        """Make the tower what it is to be saved as; its embeddings stay the same."""

    def normalised(self, raw: Tensor) -> Tensor:
        """Embeddings as they are served: of length 1 where the tower normalises, else as they are."""
        return functional.normalize(raw, dim=1) if self.normalises else raw

    def _embedding_of(self, features: dict[str, Tensor], start: int = 0) -> Tensor:
        """What the modules from number `start` on make of features, before the final normalisation."""
        for module in self.modules[start:]:
            features = module(features)
        return features["sentence_embedding"]
