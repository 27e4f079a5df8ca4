"""How much the triplets of each source count, read without torch."""

from typing import Annotated

from pydantic import AfterValidator, Field

SOURCES = ("click_one_hop", "click_multi_hop", "judged", "relevance_one_hop", "relevance_multi_hop", "given")
"""Of mined triplets."""


def _names_sources(weights: dict[str, float]) -> dict[str, float]:
    if unknown := sorted(weights.keys() - set(SOURCES)):
        raise ValueError(f"no source of triplets is named {', '.join(unknown)}; they are {', '.join(SOURCES)}")
    return weights


SourceWeights = Annotated[dict[str, Annotated[float, Field(ge=0)]], AfterValidator(_names_sources)]
