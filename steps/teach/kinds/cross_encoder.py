"""The kind `cross_encoder`."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from steps.core.params import Untrained
from steps.core.tracking import Run
from steps.teach.kinds.base import Teacher


class CrossEncoder(Teacher):
    """An encoder that reads query and document together: it scores pairs, and makes no index.

    With dual pooling a pair's score is the inner product of an embedding of its query and one of its document, which
    students can learn (EmbedDistill, Sec. 4.2).
    """

    makes_index: ClassVar[bool] = False

    kind: Literal["cross_encoder"]
    base: Untrained
    pooling: Literal["cls", "special_tokens", "segments"]
    scale: float = Field(gt=0)
    reconstruction_weight: float = Field(ge=0)
    loss: Literal["bce", "lambda"]
    positive_weight: Literal["auto"] | float
    negatives: int = Field(ge=1)
    random_negatives: int = Field(ge=0)
    max_triplets: int = Field(ge=0)
    epochs: float = Field(ge=0)
    batch_size: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)
    dropout: float = Field(ge=0, lt=1)
    max_length: int = Field(ge=8)
    checkpoint_steps: int = Field(ge=1)
    dev_queries: int = Field(ge=0)
    dev_documents: int = Field(ge=1)
    precision: Literal["auto", "fp32", "bf16"]
    seed: int = Field(ge=0)

    @model_validator(mode="after")
    def _knobs_belong_together(self) -> Self:
        if self.positive_weight != "auto" and self.positive_weight <= 0:
            raise ValueError(f"positive_weight {self.positive_weight} must be auto or above 0")
        if self.pooling == "cls" and self.reconstruction_weight:
            raise ValueError("reconstruction_weight is of dual pooling; set it to 0, or pooling: segments")
        if self.pooling == "cls" and self.scale != 1:
            raise ValueError("scale is of dual pooling, whose inner product it multiplies; set it to 1.0")
        if self.pooling != "cls" and not self.epochs:
            raise ValueError(f"pooling: {self.pooling} ranks nothing untrained; set epochs above 0, or pooling: cls")
        return self

    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Train it, or keep its base, a cross encoder, as it is."""
        from steps.teach.cross_encoder import teach_cross_encoder

        teach_cross_encoder(ingest, mine, output, self, run)
