"""What a student can start from: `start` of params.yaml."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from slimtower.common.settings import Strict
from steps.core.params import ModelName


class Layers(Strict):
    """Some layers of the teacher, in this order; negative numbers count from the last."""

    layers: list[int] = Field(min_length=1)
    """Of the teacher; negative numbers count from the last."""


class Base(Strict):
    """A pretrained encoder with its own tokenizer: a sentence-transformers folder or a Hugging Face name.

    Query-encoder alignment starts from six DistilBERTs, which keep less than the teacher's own layers; none was
    measured here. The vocabulary stays as it is: only a static student can add words.
    """

    base: ModelName = Field(min_length=1)
    """A sentence-transformers folder or a Hugging Face name; it has its own tokenizer."""


class FreshEncoder(Strict):
    """A new BERT: `layers` of `dim` with `heads`; EmbedDistill and ScalingNote take its first token, pooling: cls."""

    layers: int = Field(ge=1)
    """Layers of the transformer."""
    dim: int = Field(ge=8)
    """Its width."""
    heads: int = Field(ge=1)
    """Attention heads a layer."""
    vocabulary: int = Field(ge=0)
    """New WordPiece tokens; 0 = the teacher's tokenizer."""
    pooling: Literal["mean", "cls"] = "mean"
    """A text's embedding is the mean of its tokens, or the first token: cls."""

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> Self:
        if self.dim % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide dim ({self.dim})")
        return self


class Fresh(Strict):
    """A transformer of random weights."""

    fresh: FreshEncoder
    """The encoder."""


class StaticEncoder(Strict):
    """One vector a token and their mean: no transformer at query time."""

    token_weights: Literal["idf", "uniform", "learned"] = "idf"
    """What multiplies a vector at the start: idf, uniform or learned (idf, trained apart)."""
    added_words: int = Field(default=0, ge=0)
    """Frequent words that become tokens of their own."""
    added_pairs: int = Field(default=0, ge=0)
    """Frequent pairs of words that do."""
    width: int = Field(default=0, ge=0)
    """Dimensions of a row, which one linear map brings to the teacher's; 0 = the teacher's, without a map. Of a wide
    teacher a narrow table is a fraction of the size.
    """


class Static(Strict):
    """A static embedding: the teacher's embedding of each token."""

    static: StaticEncoder
    """The table."""


class Adapter(Strict):
    """Another encoder as it is, with a linear map into the teacher's space, which alone is trained."""

    adapter: ModelName = Field(min_length=1)
    """A sentence-transformers folder or a Hugging Face name; models/teach/NAME/tower is that of another teacher. The
    map starts where it best gives the index this encoder's scores; losses of embeddings would make it rank as the index
    teacher does.
    """


def _first_key(start: Any) -> str | None:
    keys = list(start) if isinstance(start, dict) else list(getattr(type(start), "model_fields", ()))
    return str(keys[0]) if len(keys) == 1 else None


Start = Annotated[
    Annotated[Layers, Tag("layers")]
    | Annotated[Base, Tag("base")]
    | Annotated[Fresh, Tag("fresh")]
    | Annotated[Static, Tag("static")]
    | Annotated[Adapter, Tag("adapter")],
    Discriminator(
        _first_key,
        custom_error_type="start",
        custom_error_message="give one of layers, base, fresh, static and adapter: what the student starts from",
    ),
]
