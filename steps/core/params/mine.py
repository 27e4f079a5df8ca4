"""Section `mine` of params.yaml."""

from typing import Literal

from pydantic import Field

from steps.core.params.strict import Strict


class MineParams(Strict):
    """How triplets are mined from the click log (ScalingNote, Section 4.1)."""

    planner: Literal["idf"]
    click_threshold: float = Field(ge=0, lt=1)
    click_top_terms: int = Field(ge=1, le=4)
    min_terms: int = Field(ge=1)
    max_associations: int = Field(ge=1)
    max_positives: int = Field(ge=1)
    max_negatives: int = Field(ge=1)
    multi_hop_weight: float = Field(gt=0, le=1)
    memory_limit: str = Field(pattern=r"^[1-9][0-9]*(\.[0-9]+)? ?(MB|GB|TB|MiB|GiB|TiB)$")
    seed: int
