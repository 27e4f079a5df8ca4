"""The strict base of every section of params.yaml."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen model without implicit conversion; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
