"""Knobs of the stage `release`."""

from typing import Literal

from pydantic import Field

from steps.core.params import Strict


class ReleaseParams(Strict):
    """What a release serves with, how much that may cost, and how it proves its encoder."""

    format: Literal["auto", "onnx", "table"]
    precision: Literal["auto", "int8", "mixed", "fp32"]
    parity_cosine: float = Field(ge=0, le=1)
    served_cosine: float = Field(ge=0, le=1)
    parity_ndcg_loss: float = Field(ge=0, le=1)
    total_ndcg_loss: float = Field(ge=0, le=1)
    lexical: Literal["auto", "always", "never"]
    probes: int = Field(ge=1)
    probe_tolerance: float = Field(gt=0)
