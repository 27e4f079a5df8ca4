"""Knobs of the stage `release`."""

from pydantic import Field

from steps.core.params.strict import Strict


class ReleaseParams(Strict):
    """How a release proves that its encoder is the one it was made with."""

    probes: int = Field(ge=1)
    probe_tolerance: float = Field(gt=0)
