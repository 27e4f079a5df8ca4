"""Where a teacher leaves what it was before: towers for `evaluate` to compare it with."""

from collections.abc import Sequence
from pathlib import Path

from slimtower.common.files import write_json

FOLDER, LIST = "earlier", "towers.json"


def list_towers(output: Path, names: Sequence[str]) -> None:
    """Write `output/earlier/towers.json`: the names of the towers there, the oldest first."""
    write_json(output / FOLDER / LIST, list(names))
