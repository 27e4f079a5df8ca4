"""Evidence and policies for the tests of promotion."""

from collections.abc import Mapping, Sequence
from typing import Any

from steps.promote.evidence import Evaluation, Evidence
from steps.promote.params import Policy, PromoteParams

POLICY: dict[str, Any] = {
    "margin": 0.005,
    "confidence": 0.95,
    "resamples": 1000,
    "floors": {},
    "first_floor": 0.3,
    "slices": "warn",
    "max_p50_ms": 10.0,
    "max_index_bytes": 1_000_000,
    "seed": 17,
}


def policy(**changes: Any) -> Policy:
    """The defaults with some values changed."""
    return Policy.model_validate(POLICY | changes)


def promote_params(**changes: Any) -> PromoteParams:
    """Parameters of the step; `policy` holds changes of the policy."""
    base = {"name": "retriever", "student": "", "lock_expires_s": 60.0}
    return PromoteParams.model_validate(base | changes | {"policy": POLICY | changes.get("policy", {})})


def evaluation(queries: Mapping[str, Sequence[str]], digest: str = "d" * 64, **slices: Sequence[str]) -> Evaluation:
    """An evaluation over these queries; slices by name, `__` for the slash."""
    named = {name.replace("__", "/"): frozenset(query_ids) for name, query_ids in slices.items()}
    return Evaluation(digest, {dataset: frozenset(query_ids) for dataset, query_ids in queries.items()}, named)


def evidence(values: Sequence[float] | Mapping[str, Mapping[str, float]], **changes: Any) -> Evidence:
    """Evidence on one data set `api` with queries q00, q01, ...; or on data sets with the values given."""
    values_by_set = values if isinstance(values, Mapping) else {"api": {f"q{i:02d}": v for i, v in enumerate(values)}}
    fields: dict[str, Any] = {
        "release": "r" * 64,
        "evaluation": evaluation({dataset: list(of) for dataset, of in values_by_set.items()}),
        "datasets": frozenset(values_by_set),
        "values": values_by_set,
        "p50_ms": 1.0,
        "index_bytes": 1000,
    }
    return Evidence(**(fields | changes))
