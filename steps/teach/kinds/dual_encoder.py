"""The kind `dual_encoder`."""

from typing import ClassVar, Literal

from steps.core.params import Capability
from steps.teach.kinds.base import Contrastive, Prompted


class DualEncoder(Prompted, Contrastive):
    """A dual encoder, trained contrastively over in-batch and mined negatives."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"vectors", "scores", "local"})

    kind: Literal["dual_encoder"]
    """Compared by inner product or cosine: one network for both towers, or one for each, where `untied` says so or base
    is a Router of sentence-transformers with the routes query and document.
    """
    untied: bool = False
    """true: a network for queries and one for documents, which begin as two copies of the base."""
    pooling: Literal["auto", "cls", "mean", "last"] = "auto"
    """What of its tokens' states makes a text's vector: the first, their mean or the last; auto: as the base says, the
    mean for one that says nothing.
    """
