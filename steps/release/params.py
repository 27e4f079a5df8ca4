"""Knobs of the stage `release`."""

from typing import Literal

from pydantic import Field

from slimtower.common.settings import Strict


class ReleaseParams(Strict):
    """What a release serves with, how much that may cost, and how it proves its encoder."""

    format: Literal["auto", "onnx", "table"] = "auto"
    """What serves: onnx for a transformer, table for a token table; auto chooses by the student."""
    precision: Literal["auto", "int8", "mixed", "fp32"]
    """Of the served encoder: int8 (products of a transformer, rows of a table), mixed (a quarter of the products,
    those that lose most, in fp32; of a table int8) or fp32. auto: the first of these whose loss, as measured, is within
    the limits.
    """
    served_cosine: float = Field(default=0.993, ge=0, le=1)
    """Least mean cosine of the served encoder to the student, over texts of a data set with fewer than 30 judged dev
    queries. On the demo int8 reaches 0.998 (4l) to 0.9999 (static); every coarser export that lost more than 0.5 % was
    at 0.992 or less.
    """
    parity_ndcg_loss: float = Field(default=0.005, ge=0, le=1)
    """Share of dev nDCG@10 that export and precision may cost together, on the exact index. The stage fails where dev
    queries prove that more is lost (paired one-sided t-test, p <= 0.05).
    """
    total_ndcg_loss: float = Field(default=0.01, ge=0, le=1)
    """Share that export, precision and the approximate index may cost together, on each data set; judged in the same
    way.
    """
    lexical: Literal["auto", "always", "never"]
    """Whether a release carries a BM25 index too and answers with the fused hits of both searches. auto: on the data
    sets where these are better on dev beyond chance (p < 0.05, all fusions that could have been chosen allowed for).
    """
    probe_tolerance: float = Field(default=0.005, gt=0)
    """Largest difference of one dimension of a probe. Another processor may round an int8 activation the other way
    (0.0018 the most in 600 texts of the demo, VNNI against emulated AVX2); any two students of it are at least 0.036
    apart.
    """
