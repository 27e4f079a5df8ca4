"""The kind `dual_encoder`."""

from pathlib import Path
from typing import Literal

from steps.teach.kinds.contrastive import Contrastive
from steps.teach.kinds.prompted import Prompted
from steps.tracking.runs import Run


class DualEncoder(Prompted, Contrastive):
    """A dual encoder, trained contrastively over in-batch and mined negatives."""

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

    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Train it, or keep its base as it is."""
        from steps.teach.dual_encoder import teach_dual_encoder

        teach_dual_encoder(ingest, mine, rankers, output, self, run)
