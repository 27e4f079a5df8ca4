"""Section `mine` of params.yaml."""

from typing import Literal, Self

from pydantic import Field, model_validator

from slimtower.common.settings import Strict
from steps.core.params import Seed, Untrained

JUDGED_DEPTH = 60  # the last rank of a searcher that gives a judged query a hard negative
RELEVANCE_DEPTH = 50  # the last rank of a ranker's list that may be one


class DebiasParams(Strict):
    """Whether clicks are weighed by the inverse of their rank's propensity, and how propensities are estimated."""

    method: Literal["none", "ipw"]
    """ipw: a click counts 1 / propensity of its rank, estimated from the log."""
    max_rank: int = Field(default=10, ge=2)
    """Last rank with a propensity of its own; ranks below it share this one's."""


class MineParams(Strict):
    """How triplets are mined from the click log and a ranker's scores (ScalingNote, Section 4.1)."""

    engine: Literal["duckdb", "spark"]
    """duckdb: in this process; spark: the same expressions on spark_master (extra `spark`, Java 17)."""
    memory_limit: str = Field(default="2GB", pattern=r"^[1-9][0-9]*(\.[0-9]+)? ?(MB|GB|TB|MiB|GiB|TiB)$")
    """Memory of DuckDB (Spark: of the driver); what does not fit spills to disk beside the output."""
    spark_master: str = Field(default="local[2]", min_length=1)
    """Such as spark://host:7077, yarn or k8s://...; driver and executors must share the output's folder."""
    planner: Literal["idf", "occlusion", "table"]
    """How the importance of a query's terms is found; those of a query sum to 1. idf: share of the query's total idf
    over the training queries; occlusion: how far the embedding of planner_model moves when the term is left out;
    table: your own, ingest.term_scores.
    """
    planner_model: Untrained = "all-MiniLM-L6-v2"
    """Of occlusion; never the trained teacher."""
    click_threshold: float = Field(ge=0.01, lt=1)
    """Importance: q1 also gets q2's clicks when each of q1's top terms has more than this in q2. Higher = fewer,
    closer associations; the cost of mining falls with it.
    """
    relevance_threshold: float = Field(ge=0.01, lt=1)
    """Importance: two queries share their relevant documents when that holds both ways."""
    judged_skip: int = Field(default=10, ge=0)
    """First ranks of a searcher (candidates.searchers) that give a judged query no hard negative: what is ranked high
    may be relevant though nobody said so. Ranks down to 60, and documents judged irrelevant, give one.
    """
    relevance_skip: int = Field(default=10, ge=1)
    """Last rank of a ranker's list that is left out: the first is the positive, and those behind it, down to this one,
    may be relevant too. Ranks down to 50 may be hard negatives.
    """
    max_associations: int = Field(default=20, ge=1)
    """Source queries of one query at most, the strongest first."""
    max_positives: int = Field(default=8, ge=0)
    """Positives of a query by clicks or a ranker at most, for a click may be chance: of its own those of most weight,
    and as many again through associations, the strongest first. 0 = all.
    """
    negatives_per_positive: int = Field(default=1, ge=1)
    """Hard negatives drawn for each positive and the query it came through, a triplet each; fewer where there are no
    more. A cross encoder reads all of a positive's in one list.
    """
    multi_hop_weight: float = Field(gt=0, le=1)
    """Mean weight of a multi-hop triplet in training; one-hop triplets have the mean 1."""
    debias: DebiasParams
    """Clicks weighed by the inverse of their rank's propensity."""
    seed: Seed = 7
    """Draws negatives and the report's samples."""

    @model_validator(mode="after")
    def _some_ranks_are_left(self) -> Self:
        for kind, depth in (("judged", JUDGED_DEPTH), ("relevance", RELEVANCE_DEPTH)):
            if depth <= (skip := getattr(self, f"{kind}_skip")):
                raise ValueError(f"{kind}_skip {skip} must be below {depth}, the last rank that gives a hard negative")
        return self
