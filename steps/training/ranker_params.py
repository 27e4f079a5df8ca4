"""Knobs that every cross encoder has, read without torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import Capability, NotOfThisRun, Seed, check_untrained
from steps.training.source_weights import SourceWeights

CROSS_ENCODER_GIVES: frozenset[Capability] = frozenset({"scores", "local", "layers", "pairs", "joint"})


class RankerTraining(Strict):
    """What a cross encoder starts from, and on what it is trained and how."""

    base: NotOfThisRun
    """An encoder, which gets a new head, or a cross encoder: a bundled name, a folder or a Hugging Face name. One that
    another run trained is taken by its whole path, with epochs 0.
    """
    loss: Literal["bce", "softmax", "lambda"] = "bce"
    """bce: each pair by itself; over the documents of a query's positive softmax: cross-entropy, lambda: LambdaLoss."""
    negatives: int = Field(default=2, ge=1)
    """Hard negatives a positive, at most: those of its triplets, mine.negatives_per_positive a source. A random
    document of the data set is added.
    """
    max_triplets: int = Field(default=0, ge=0)
    """Triplets drawn for training, each with a chance in proportion to its weight. Where there are no more, or with 0 =
    no limit, all may train: one of half the largest weight in every second epoch.
    """
    source_weights: SourceWeights = Field(default={})
    """Factor of the weights of a source's triplets, as a teacher's; 0.0 leaves a source out, one not named has 1.0,
    click_multi_hop 0.0.
    """
    epochs: float = Field(default=1.0, ge=0)
    """Passes over their pairs; 0 = the base as it is, which has to be a cross encoder."""
    batch_size: int = Field(default=32, ge=2)
    """Pairs of a query and a document a step."""
    learning_rate: float = Field(default=5.0e-5, gt=0)
    """Of AdamW, with linear decay."""
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability in every layer while training."""
    max_length: int = Field(default=96, ge=8)
    """Tokens of a pair that it reads; the longer text is cut first."""
    checkpoint_steps: int = Field(default=25, ge=1)
    """Training steps between two checkpoints under SLIMTOWER_CACHE."""
    dev_queries: int = Field(default=50, ge=0)
    """Dev queries on which it is compared with the order of BM25; 0 = no comparison."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    seed: Seed = 7
    """Of the new head, the draws and dropout."""

    @model_validator(mode="after")
    def _training_starts_from_untrained_weights(self) -> Self:
        if self.epochs:
            try:
                check_untrained(self.base)
            except ValueError as error:
                raise ValueError(f"base {self.base!r} {error}, or set epochs to 0.0") from None
        return self
