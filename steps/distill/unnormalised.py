"""A tower without its final normalisation, for losses that compare lengths."""

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn
from torch.nn import functional


class Unnormalised:
    """The modules of a tower, less a normalisation at its end."""

    def __init__(self, tower: SentenceTransformer) -> None:
        modules: list[nn.Module] = list(tower)
        self.normalises = isinstance(modules[-1], Normalize)
        self.modules = modules[:-1] if self.normalises else modules

    def embed(self, features: dict[str, Tensor], start: int = 0) -> Tensor:
        """Run the modules from number `start` on; embeddings `(n, dim)`."""
        for module in self.modules[start:]:
            features = module(features)
        return features["sentence_embedding"]

    def normalised(self, raw: Tensor) -> Tensor:
        """What the whole tower gives: of length 1 where it normalises, else as it is."""
        return functional.normalize(raw, dim=1) if self.normalises else raw
