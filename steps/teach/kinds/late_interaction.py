"""The kind `late_interaction`."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from steps.core.tracking import Run
from steps.teach.kinds.on_triplets import OnTriplets


class LateInteraction(OnTriplets):
    """ColBERT: a vector a token, compared by MaxSim (LEAD, Eq. 2), trained over in-batch and mined negatives."""

    makes_index: ClassVar[bool] = False

    kind: Literal["late_interaction"]
    dim: int = Field(ge=0)
    hard_negatives: Literal["none", "softmax"]

    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Train it, or keep its base as it is."""
        from steps.teach.late_interaction import teach_late_interaction

        teach_late_interaction(ingest, mine, output, self, run)
