"""The schema of bench/scaling.yaml."""

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from slimtower.common.settings import Strict, read_mapping, validated
from steps.core.params import Name
from steps.distill.starts import FreshEncoder

HELD_OUT = "held_out"


class Point(NamedTuple):
    """A cell of the sweep: the name of a size, the encoder, and how many triplets it is trained on."""

    name: str
    size: FreshEncoder
    pairs: int


class HeldOut(Strict):
    """The cell that the laws foretell."""

    size: FreshEncoder
    pairs: int = Field(ge=2)


class Sweep(Strict):
    """The whole file; a law of three unknowns is fitted to four points or more."""

    sizes: dict[Name, FreshEncoder] = Field(min_length=4)
    pairs: list[int] = Field(min_length=4)
    held_out: HeldOut
    queries: int = Field(ge=1)
    negatives: int = Field(ge=1)
    seed: int = Field(ge=0)
    teacher: dict[str, Any]

    def points(self) -> list[Point]:
        """All cells, the one that is held out last."""
        grid = [Point(name, size, pairs) for name, size in self.sizes.items() for pairs in self.pairs]
        return [*grid, Point(HELD_OUT, self.held_out.size, self.held_out.pairs)]


def read_sweep(path: Path) -> Sweep:
    """Read and check the file; UserError names what is wrong."""
    return validated(Sweep, read_mapping(path), str(path))
