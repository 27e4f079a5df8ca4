"""What is known of a release, and of the queries it was measured on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MEASURE = "nDCG@10"


@dataclass(frozen=True)
class Evaluation:
    """What releases are measured on: test queries by data set, named slices of them, and a digest of the whole."""

    digest: str
    queries: Mapping[str, frozenset[str]]
    slices: Mapping[str, frozenset[str]]  # "<dataset>/<slice>" -> query ids of that data set
    reported: Mapping[str, frozenset[str]] = field(default_factory=dict)  # likewise: slices of the evaluation's report


@dataclass(frozen=True)
class Evidence:
    """What one release does: nDCG@10 by data set and query id, milliseconds a query, bytes below index/."""

    release: str  # digest of the release's files
    evaluation: Evaluation
    datasets: frozenset[str]  # those the release has an index of
    values: Mapping[str, Mapping[str, float]]
    p50_ms: float
    index_bytes: int
    teacher: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The teacher's nDCG@10 on the same queries, if it was measured: a first champion is compared with it."""

    def as_json(self) -> dict[str, Any]:
        """Everything but the teacher's values, and of the evaluation its digest alone."""
        return {
            "release": self.release,
            "evaluation": self.evaluation.digest,
            "datasets": sorted(self.datasets),
            "values": {dataset: dict(values) for dataset, values in self.values.items()},
            "p50_ms": self.p50_ms,
            "index_bytes": self.index_bytes,
        }


def evidence_from_json(raw: Mapping[str, Any], evaluation: Evaluation) -> Evidence:
    """Evidence that `as_json` wrote on the same evaluation; ValueError when it was another.

    AttributeError, KeyError, TypeError or ValueError where it wrote something else.
    """
    if raw["evaluation"] != evaluation.digest:
        raise ValueError(f"evidence of evaluation {raw['evaluation']}, expected {evaluation.digest}")
    return Evidence(
        release=raw["release"],
        evaluation=evaluation,
        datasets=frozenset(raw["datasets"]),
        values={
            dataset: {query: float(value) for query, value in values.items()}
            for dataset, values in raw["values"].items()
        },
        p50_ms=float(raw["p50_ms"]),
        index_bytes=int(raw["index_bytes"]),
    )
