"""Section `mine` of params.yaml."""

from typing import Literal

from pydantic import Field

from slimtower.common.settings import Strict

# Ranks that give hard negatives: those above may be relevant though nobody said so.
SKIPPED = 10  # first ranks of a searcher, for judged queries, and of a ranker's list, that give none
JUDGED_DEPTH = 60  # the last rank of a searcher that gives a judged query one
RELEVANCE_DEPTH = 50  # the last rank of a ranker's list that may be one


class DebiasParams(Strict):
    """Whether clicks are weighed by the inverse of their rank's propensity, and how propensities are estimated."""

    method: Literal["none", "ipw"]
    """ipw: a click counts 1 / propensity of its rank, estimated from the log."""


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
    over the training queries; occlusion: how far the embedding of a small encoder moves when the term is left out;
    table: your own, ingest.term_scores.
    """
    click_threshold: float = Field(ge=0.01, lt=1)
    """Importance: q1 also gets q2's clicks when each of q1's top terms has more than this in q2. Higher = fewer,
    closer associations; the cost of mining falls with it.
    """
    relevance_threshold: float = Field(ge=0.01, lt=1)
    """Importance: two queries share their relevant documents when that holds both ways."""
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
