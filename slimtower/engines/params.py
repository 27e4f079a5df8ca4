"""Section `deploy` of params.yaml."""

from pydantic import Field, field_validator

from slimtower.common.settings import PARAMS, Strict, checked_name, read_mapping


class DeployParams(Strict):
    """How a collection is filled, how its graph is built and searched, and when a deployment stops."""

    target_recall: float = Field(gt=0, le=1)
    """Recall@10 of the engine against exact search, by the student on dev queries, that the candidates a search looks
    at (ef) are chosen to reach. Where it is out of reach the best is kept, and the command says so.
    """
    m: list[int] = Field(default=[16, 32, 64], min_length=1)
    """Links of a node in the HNSW graph, tried in turn until target_recall is reached."""
    margin: float = Field(default=0.01, ge=0, le=1)
    """Recall that the engine may lose against the release's own index; below it nothing is moved."""
    batch: int = Field(default=500, ge=1, le=10000)
    """Documents put in at once; Qdrant takes 32 MB in one request."""

    @field_validator("m")
    @classmethod
    def _rises(cls, links: list[int]) -> list[int]:
        if links != sorted(set(links)) or any(not 4 <= count <= 100 for count in links):
            raise ValueError("must rise, between 4 and 100: each is tried where the one before does not find enough")
        return links


def registered_name() -> str:
    """promote.name: the registered model, whose name the engine's aliases begin with."""
    promote = read_mapping(PARAMS).get("promote")
    return checked_name("promote.name", str(promote.get("name")) if isinstance(promote, dict) else "")
