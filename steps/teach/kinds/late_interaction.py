"""The kind `late_interaction`."""

from typing import ClassVar, Literal

from pydantic import Field

from steps.core.params import Capability
from steps.teach.kinds.base import OnTriplets, Prompted


class LateInteraction(Prompted, OnTriplets):
    """ColBERT: a vector a token, compared by MaxSim (LEAD, Eq. 2), trained over in-batch and mined negatives.

    Made of an encoder, its vectors have length 1; LEAD compares them as they are.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset({"scores", "local", "layers", "joint"})

    kind: Literal["late_interaction"]
    """It scores (score.teachers) and re-ranks (evaluate.rerankers), and makes no index. Lengths count special tokens.
    See recipes/label_free.yaml.
    """
    temperature: float = Field(default=1.0, gt=0)
    """Divides MaxSims before the softmax; these are sums over a query's tokens, so that it is about 1."""
    dim: int = Field(default=0, ge=0)
    """Dimensions of a token's vector; 0 = the base's own, else a new linear layer's, or a ColBERT model's."""
    hard_negatives: Literal["none", "softmax"] = "softmax"
    """softmax: mined negatives among a query's documents; none: without them."""
