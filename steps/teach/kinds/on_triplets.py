"""What every kind of teacher that is trained on mined triplets has as knobs."""

from abc import ABC
from typing import Literal

from pydantic import Field

from steps.core.params import ModelName, Seed
from steps.teach.kinds.base import Teacher
from steps.training.source_weights import SourceWeights


class OnTriplets(Teacher, ABC):
    """A model trained on queries with a document to bring near and one to push away."""

    base: ModelName = Field(min_length=1)
    """Starting weights: the bundled name, a sentence-transformers folder or a Hugging Face name."""
    epochs: float = Field(default=1.0, ge=0)
    """Passes over the chosen triplets; 0 = zero-shot teacher, the base as it is."""
    batch_size: int = Field(default=32, ge=2)
    """Triplets a step; each query sees 2 * batch_size documents, one of them its positive."""
    learning_rate: float = Field(default=5.0e-5, gt=0)
    """Of AdamW, with linear decay."""
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability in every layer while training; on a CPU its random numbers cost a third of a step."""
    temperature: float = Field(default=0.05, gt=0)
    """Similarities are divided by it before the softmax."""
    max_query_length: int = Field(default=64, ge=4)
    """Tokens of a training query; the rest is cut."""
    max_document_length: int = Field(default=256, ge=8)
    """Tokens the saved tower reads of any text; a zero-shot teacher wants as many as its base was made for."""
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
    dev_queries: int = Field(default=300, ge=0)
    """Dev queries for the comparison with the base; 0 = no comparison."""
    dev_documents: int = Field(default=400, ge=0)
    """Random documents among which the relevant ones must be found in that comparison."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    seed: Seed = 7
    """Of the draw of triplets, their order and dropout."""
