"""What teachers share as knobs in params.yaml, what they are made of, and where they leave what they were before."""

from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from slimtower.common.files import write_json
from slimtower.common.names import plain_name
from slimtower.common.settings import Strict
from steps.core.params import Capability, ModelName
from steps.training.params import TripletTraining

EARLIER, TOWERS = "earlier", "towers.json"  # a folder of what a teacher was before, and its list


class Teacher(Strict):
    """Base of all kinds. A subclass in a module of this package is known by its `kind` in params.yaml.

    `steps/teach/<kind>.py` makes it: `teach(inputs, output, params, run)` writes `output/tower` and
    `output/report.json`, which names the kind. It may leave towers that it was before as well,
    `output/earlier/<name>`, for `evaluate` to compare it with: `list_towers` names them.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset({"vectors", "local"})

    trains_in_processes: ClassVar[bool] = False  # whether several train it together; of these rank 0 alone may write

    kind: str
    """What the teacher is."""

    @property
    def embeds(self) -> Literal["pooled", "joint"] | None:
        """What its embeddings of pairs are of: a text, given the document, or both; None if it embeds no pairs."""
        return None

    @property
    def checking_ranker(self) -> str:
        """The ranker that checks the hard negatives of its rounds; "" for none."""
        return ""


class Inputs(NamedTuple):
    """Folders that a teacher is made of: tables of `ingest`, triplets of `mine`, and a folder for each ranker."""

    ingest: Path
    mine: Path
    rankers: Path


def list_towers(output: Path, names: Sequence[str]) -> None:
    """Write `output/earlier/towers.json`: the names of the towers there, the oldest first."""
    write_json(output / EARLIER / TOWERS, list(names))


class Prompted(Strict):
    """Text in front of texts, which is saved with the teacher: all that it reads and all that it trains on have it."""

    query_prompt: str | None = None
    """Text in front of each query, such as "query: " for E5; null = as the base was saved, "" = none."""
    document_prompt: str | None = None
    """Text in front of each document, such as "passage: " for E5; null = as the base was saved, "" = none."""


class OnTriplets(TripletTraining, Teacher, ABC):
    """A model trained on queries with a document to bring near and one to push away."""

    base: ModelName = Field(min_length=1)
    """Starting weights: the bundled name, a sentence-transformers folder or a Hugging Face name."""
    batch_size: int = Field(default=32, ge=2)
    """Triplets a step; each query sees 2 * batch_size documents, one of them its positive."""
    temperature: float = Field(default=0.05, gt=0)
    """Similarities are divided by it before the softmax."""
    max_query_length: int = Field(default=64, ge=4)
    """Tokens of a training query; the rest is cut."""
    max_document_length: int = Field(default=256, ge=8)
    """Tokens the saved tower reads of any text; a zero-shot teacher wants as many as its base was made for."""
    dev_queries: int = Field(default=300, ge=0)
    """Dev queries for the comparison with the base; 0 = no comparison."""
    dev_documents: int = Field(default=400, ge=0)
    """Random documents among which the relevant ones must be found in that comparison."""


class LossParams(Strict):
    """Which terms the loss of a batch has, and over which dimensions."""

    both_directions: bool = False
    """true: half of each query over documents, half of each positive over queries."""
    dims: list[Annotated[int, Field(ge=1)]] = Field(default=[])
    """First dimensions trained along, for an index of that index.dim (Matryoshka), e.g. [64, 128]. All weigh the same,
    as in ScalingNote.
    """
    hard_negatives: Literal["none", "softmax", "margin", "both"] = "softmax"
    """Where mined negatives count. softmax: among a query's documents; margin: in a margin loss of their own; both;
    none: nowhere.
    """
    margin: float = Field(default=0.0, ge=0)
    """Similarity by which a query's positive must beat its mined negative in the margin loss."""
    margin_weight: float = Field(default=1.0, gt=0)
    """Weight of the margin loss."""

    @field_validator("dims")
    @classmethod
    def _once_each(cls, dims: list[int]) -> list[int]:
        if len(set(dims)) < len(dims):
            raise ValueError("names a dimension twice; name each once")
        return dims

    @model_validator(mode="after")
    def _margin_counts(self) -> Self:
        if self.hard_negatives in ("none", "softmax") and (self.margin or self.margin_weight != 1):
            raise ValueError(
                "margin and margin_weight are of hard_negatives: margin or both; set it, or leave them out"
            )
        return self


class RoundParams(Strict):
    """How many rounds follow the first training, and which documents a trained tower's search gives as negatives."""

    more: int = Field(default=0, ge=0)
    """Rounds after the first training; 0 = none. In each the trained tower searches the corpus for its training
    queries. It then trains on over the same triplets, for as many epochs, each with a new negative from what it found,
    never a known positive. A round costs a training and reading the corpus once.
    """
    skip: int = Field(default=10, ge=0)
    """The best hits, which may be relevant and are left alone."""
    depth: int = Field(default=50, ge=1)
    """The last rank that may be a negative."""
    margin: float = Field(default=0.05, ge=0, lt=1)
    """A negative's score must be below the positive's by this share of it; 0.05: at most 95 % of it."""
    ranker: str = ""
    """One of rank.rankers that checks each negative before it is taken; "" = none."""

    @field_validator("ranker")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return plain_name(name) if name else name

    @model_validator(mode="after")
    def _leaves_ranks(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip is {self.skip} and depth {self.depth}; negatives rank behind skip, down to depth")
        return self


class LoraParams(Strict):
    """Low-rank matrices that train in place of a network's own weights, and what they are added to."""

    rank: int = Field(ge=1)
    """Of the low-rank matrices."""
    target_modules: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Modules beside which they stand, such as [q_proj, v_proj], of a BERT [query, value]."""


class Contrastive(OnTriplets, ABC):
    """A query and a document tower, trained contrastively over in-batch and mined negatives."""

    trains_in_processes: ClassVar[bool] = True

    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW: what a step takes off matrices, times the learning rate."""
    lora: LoraParams | None = None
    """null: all weights train. Else low-rank matrices, and what is not the network's own with them: linear maps (`pip
    install peft`).
    """
    gradient_checkpointing: bool = False
    """true: recompute activations; less memory, a third more time."""
    loss: LossParams = LossParams()
    """The terms of the contrastive loss."""
    rounds: RoundParams = RoundParams()
    """Further rounds, with negatives that the tower itself found."""

    @property
    def checking_ranker(self) -> str:
        """That of its rounds."""
        return self.rounds.ranker

    @model_validator(mode="after")
    def _rounds_have_a_use_for_what_they_find(self) -> Self:
        if self.rounds.more and self.loss.hard_negatives == "none":
            raise ValueError("rounds.more: rounds find hard negatives, which loss.hard_negatives: none leaves out")
        return self
