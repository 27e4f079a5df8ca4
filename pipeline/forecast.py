"""About how long stages take: as long as they took before, here or in the record of the demo, scaled by documents."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, read_json, sha256_text, write_json

RECORD, RECORD_DOCUMENTS = Path("bench/results/demo.json"), 6_000  # of the demo


def expected_seconds(stages: Collection[str], documents: int) -> dict[str, float]:
    """About how long each of these stages takes for a corpus of so many documents; {} if one of them is unknown.

    A recipe that was not run here yet has no forecast: nothing tells how its teacher compares with the demo's.
    """
    earlier = _read(_times_file())
    if not earlier and not os.environ.get("SLIMTOWER_RECIPE"):
        recorded = _read(RECORD).get("stage_seconds", {})
        earlier = {stage: {"seconds": seconds, "documents": RECORD_DOCUMENTS} for stage, seconds in recorded.items()}
    if not set(stages) <= set(earlier):
        return {}
    return {stage: earlier[stage]["seconds"] * documents / max(1, earlier[stage]["documents"]) for stage in stages}


def record_seconds(seconds: Mapping[str, float], documents: int) -> None:
    """Keep what stages took, for the next run of this project, or of this recipe, on this machine."""
    times = {stage: {"seconds": round(taken, 1), "documents": documents} for stage, taken in seconds.items()}
    if times:
        write_json(_times_file(), _read(_times_file()) | times)


def in_words(seconds: float) -> str:
    """An estimated time, as a person says it, after "about"."""
    return f"{round(seconds / 60)} minutes" if seconds >= 90 else "a minute" if seconds >= 30 else "half a minute"


def _times_file() -> Path:
    root = Path(os.environ.get("SLIMTOWER_RECIPE", "")).name or str(Path.cwd())
    return cache_root() / "stage_seconds" / f"{sha256_text(root)[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    """A file of ours; {} if it is not there, or somebody damaged it."""
    try:
        content = read_json(path) if path.is_file() else {}
        return content if isinstance(content, dict) else {}
    except (UserError, OSError, ValueError):
        return {}
