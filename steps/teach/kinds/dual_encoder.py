"""The kind `dual_encoder`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from steps.core.tracking import Run
from steps.teach.kinds.base import Teacher


class DualEncoder(Teacher):
    """A dual encoder, trained by InfoNCE over in-batch and mined negatives."""

    kind: Literal["dual_encoder"]
    base: str = Field(min_length=1)
    epochs: float = Field(ge=0)
    batch_size: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)
    dropout: float = Field(ge=0, lt=1)
    temperature: float = Field(gt=0)
    max_query_length: int = Field(ge=4)
    max_document_length: int = Field(ge=8)
    max_triplets: int = Field(ge=1)
    checkpoint_steps: int = Field(ge=1)
    dev_queries: int = Field(ge=0)
    dev_documents: int = Field(ge=0)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)

    def teach(self, ingest: Path, mine: Path, output: Path, run: Run) -> None:
        """Train it, or keep its base as it is."""
        from steps.teach.dual_encoder import teach_dual_encoder

        teach_dual_encoder(ingest, mine, output, self, run)
