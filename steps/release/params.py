"""Knobs of the stage `release`."""

from typing import Literal

from slimtower.common.settings import Strict


class ReleaseParams(Strict):
    """What a release serves with."""

    precision: Literal["auto", "int8", "mixed", "fp32"]
    """Of the served encoder: int8 (products of a transformer, rows of a table), mixed (a quarter of the products,
    those that lose most, in fp32; of a table int8) or fp32. auto: the first of these whose loss, as measured, is within
    the limits.
    """
    lexical: Literal["auto", "always", "never"]
    """Whether a release carries a BM25 index too and answers with the fused hits of both searches. auto: on the data
    sets where these are better on dev beyond chance (p < 0.05, all fusions that could have been chosen allowed for).
    """
