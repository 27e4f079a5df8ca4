"""Section `mine` of params.yaml."""

from typing import Literal, Self

from pydantic import Field, model_validator

from steps.core.params import Strict, Untrained


class DebiasParams(Strict):
    """Whether clicks are weighed by the inverse of their rank's propensity, and how propensities are estimated."""

    method: Literal["none", "ipw"]
    max_rank: int = Field(ge=2)
    clip: float = Field(ge=1)
    max_pairs: int = Field(ge=1)
    iterations: int = Field(ge=1)
    tolerance: float = Field(gt=0)


class MineParams(Strict):
    """How triplets are mined from the click log and a ranker's scores (ScalingNote, Section 4.1)."""

    engine: Literal["duckdb", "spark"]
    memory_limit: str = Field(pattern=r"^[1-9][0-9]*(\.[0-9]+)? ?(MB|GB|TB|MiB|GiB|TiB)$")
    spark_master: str = Field(min_length=1)
    planner: Literal["idf", "occlusion", "table"]
    planner_model: Untrained
    click_threshold: float = Field(ge=0.01, lt=1)  # a query offers every set of its terms above it
    click_top_terms: int = Field(ge=1, le=4)
    relevance_threshold: float = Field(ge=0.01, lt=1)
    relevance_top_terms: int = Field(ge=1, le=4)
    judged_skip: int = Field(ge=0)
    judged_depth: int = Field(ge=1)
    relevance_skip: int = Field(ge=1)
    relevance_depth: int = Field(ge=2)
    min_terms: int = Field(ge=1)
    max_associations: int = Field(ge=1)
    max_positives: int = Field(ge=1)
    max_negatives: int = Field(ge=1)
    multi_hop_weight: float = Field(gt=0, le=1)
    debias: DebiasParams
    seed: int

    @model_validator(mode="after")
    def _some_ranks_are_left(self) -> Self:
        for kind in ("judged", "relevance"):
            depth, skip = getattr(self, f"{kind}_depth"), getattr(self, f"{kind}_skip")
            if depth <= skip:
                raise ValueError(
                    f"{kind}_depth {depth} must be above {kind}_skip {skip}: hard negatives are ranked between the two"
                )
        return self
