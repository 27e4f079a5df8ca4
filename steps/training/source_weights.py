"""How much the triplets of each source count, read without torch."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

SOURCES = ("click_one_hop", "click_multi_hop", "judged", "relevance_one_hop", "relevance_multi_hop", "given")
"""Of mined triplets."""
UNNAMED = {"click_multi_hop": 0.0}
"""Of sources that params do not name, where that is not 1 (docs/decisions.md, 18)."""


def _names_sources(weights: dict[str, float]) -> dict[str, float]:
    if unknown := sorted(weights.keys() - set(SOURCES)):
        raise ValueError(f"no source of triplets is named {', '.join(unknown)}; they are {', '.join(SOURCES)}")
    return weights


def weights_of(sources: Sequence[str], weights: Mapping[str, float]) -> np.ndarray:
    """The factor of each source's weights, float64 `(sources,)`."""
    return np.array([weights.get(name, UNNAMED.get(name, 1.0)) for name in sources], dtype=np.float64)


def of_no_weight(left_out: Mapping[str, int]) -> str | None:
    """What says how many triplets a weight of 0 leaves out, else None."""
    count = left_out["source_weight_zero"]
    return f"{count:,} triplets are of sources that train nothing (source_weights)" if count else None


SourceWeights = Annotated[dict[str, Annotated[float, Field(ge=0)]], AfterValidator(_names_sources)]
