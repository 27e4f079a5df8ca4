"""Section `deploy` of params.yaml."""

from pathlib import Path

from pydantic import Field, field_validator

from steps.core.params import PARAMS, Strict, checked_name, read_mapping


class DeployParams(Strict):
    """How a collection is filled, how its graph is built and searched, and when a deployment stops."""

    target_recall: float = Field(gt=0, le=1)
    m: list[int] = Field(min_length=1)
    ef_construction: int = Field(ge=4, le=1000)
    recall_queries: int = Field(ge=1)
    margin: float = Field(ge=0, le=1)
    batch: int = Field(ge=1, le=10000)
    sample: int = Field(ge=1, le=1000)

    @field_validator("m")
    @classmethod
    def _rises(cls, links: list[int]) -> list[int]:
        if links != sorted(set(links)) or any(not 4 <= count <= 100 for count in links):
            raise ValueError("must rise, between 4 and 100: each is tried where the one before does not find enough")
        return links


def registered_name(path: Path = PARAMS) -> str:
    """promote.name: the registered model, whose name the engine's aliases begin with."""
    promote = read_mapping(path).get("promote")
    return checked_name("promote.name", str(promote.get("name")) if isinstance(promote, dict) else "")
