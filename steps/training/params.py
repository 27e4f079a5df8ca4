"""Knobs that trainings on mined triplets share, and how much each source's triplets count. Read without torch."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import Capability, NotOfThisRun, Seed, check_untrained

CROSS_ENCODER_GIVES: frozenset[Capability] = frozenset({"scores", "local", "layers", "pairs", "joint"})
SOURCES = ("click_one_hop", "click_multi_hop", "judged", "relevance_one_hop", "relevance_multi_hop", "given")
"""Of mined triplets."""
UNNAMED = {"click_multi_hop": 0.0}
"""Of sources that params do not name, where that is not 1 (docs/decisions.md, 18)."""


def _names_sources(weights: dict[str, float]) -> dict[str, float]:
    if unknown := sorted(weights.keys() - set(SOURCES)):
        raise ValueError(f"no source of triplets is named {', '.join(unknown)}; they are {', '.join(SOURCES)}")
    return weights


SourceWeights = Annotated[dict[str, Annotated[float, Field(ge=0)]], AfterValidator(_names_sources)]


class TripletTraining(Strict):
    """What trainings on mined triplets share: of teachers and of rankers."""

    epochs: float = Field(default=1.0, ge=0)
    """Passes over the chosen triplets; 0 = the base as it is: a zero-shot teacher, or a ready cross encoder."""
    learning_rate: float = Field(default=5.0e-5, gt=0)
    """Of AdamW, with linear decay."""
    max_triplets: int = Field(default=0, ge=0)
    """Triplets drawn for training, each with a chance in proportion to its weight. Where there are no more, or with 0 =
    no limit, all may train: one of half the largest weight in every second epoch.
    """
    source_weights: SourceWeights = Field(default={})
    """Factor of the weights of a source's triplets, e.g. {click_multi_hop: 0.5, judged: 2.0}; 0.0 leaves a source out,
    one not named has 1.0: click_one_hop, judged, relevance_one_hop, relevance_multi_hop, given; click_multi_hop has
    0.0.
    """
    checkpoint_steps: int = Field(default=25, ge=1)
    """Training steps between two checkpoints under SLIMTOWER_CACHE."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    seed: Seed = 7
    """Of the draw of triplets, their order and new weights, such as a ranker's head."""


class RankerTraining(TripletTraining):
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
    batch_size: int = Field(default=32, ge=2)
    """Pairs of a query and a document a step."""
    max_length: int = Field(default=96, ge=8)
    """Tokens of a pair that it reads; the longer text is cut first."""
    dev_queries: int = Field(default=50, ge=0)
    """Dev queries on which it is compared with the order of BM25; 0 = no comparison."""

    @model_validator(mode="after")
    def _training_starts_from_untrained_weights(self) -> Self:
        if self.epochs:
            try:
                check_untrained(self.base)
            except ValueError as error:
                raise ValueError(f"base {self.base!r} {error}, or set epochs to 0.0") from None
        return self


def of_no_weight(left_out: Mapping[str, int]) -> str | None:
    """What says how many triplets a weight of 0 leaves out, else None."""
    count = left_out["source_weight_zero"]
    return f"{count:,} triplets are of sources that train nothing (source_weights)" if count else None
