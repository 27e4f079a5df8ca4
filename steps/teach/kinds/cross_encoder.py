"""The kind `cross_encoder`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from steps.core.params import Capability
from steps.teach.kinds.base import Teacher
from steps.training.params import CROSS_ENCODER_GIVES, RankerTraining

_SCALES = {"cls": 1.0, "special_tokens": 0.5, "segments": 0.05}


class CrossEncoder(RankerTraining, Teacher):
    """An encoder that reads query and document together: it scores pairs, and makes no index.

    With dual pooling a pair's score is the inner product of an embedding of its query and one of its document, which
    students can learn (EmbedDistill, Sec. 4.2).
    """

    gives: ClassVar[frozenset[Capability]] = CROSS_ENCODER_GIVES

    kind: Literal["cross_encoder"]
    """It scores (score.teachers) and re-ranks (evaluate.rerankers), and makes no index. See
    recipes/cross_encoder_teacher.yaml.
    """
    pooling: Literal["cls", "special_tokens", "segments"] = "cls"
    """The score is a head's on [CLS] (cls), or the inner product of an embedding of the query and one of the document:
    of [CLS] and [SEP] (special_tokens), or of their tokens' weighted means (segments).
    """
    scale: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Of that product, where the paper has 1; auto: 0.05 of segments, whose products are in the hundreds, and 0.5 of
    special_tokens.
    """
    reconstruction_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss that lets such embeddings tell their tokens. Dual pooling needs one, such as 0.1: without it
    the embeddings of pairs collapse. The base's input embeddings predict the tokens; EmbedDistill names no head.
    """
    dev_queries: int = Field(default=200, ge=0)
    """Dev queries on which it is compared with BM25; 0 = no comparison."""
    dev_documents: int = Field(default=30, ge=1)
    """Documents that BM25 finds for a dev query, which the teacher re-ranks there."""

    @property
    def embeds(self) -> Literal["pooled", "joint"]:
        """Dual pooling makes an embedding of the query alone."""
        return "joint" if self.pooling == "cls" else "pooled"

    @property
    def product_scale(self) -> float:
        """By which the inner product is multiplied."""
        return _SCALES[self.pooling] if self.scale == "auto" else self.scale

    @model_validator(mode="after")
    def _knobs_belong_together(self) -> Self:
        if self.pooling == "cls" and self.reconstruction_weight:
            raise ValueError("reconstruction_weight is of dual pooling; set it to 0, or pooling: segments")
        if self.pooling == "cls" and self.scale not in ("auto", 1):
            raise ValueError("scale is of dual pooling, whose inner product it multiplies; set it to auto")
        if self.pooling != "cls" and not self.epochs:
            raise ValueError(f"pooling: {self.pooling} ranks nothing untrained; set epochs above 0, or pooling: cls")
        if self.pooling != "cls" and not self.reconstruction_weight:
            raise ValueError(
                f"pooling: {self.pooling} makes embeddings that collapse without reconstruction; set"
                " reconstruction_weight to 0.1"
            )
        return self
