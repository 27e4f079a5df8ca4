"""Students as their releases serve them: alone, or where that carries BM25 fused with it; by metrics.json."""

from collections.abc import Mapping
from typing import Any

from steps.evaluate.systems import TEACHER, fused_name


def fusing(metrics: Mapping[str, Any], student: str = "") -> list[str]:
    """Data sets on which a student's release fuses with BM25; without a name on which any does; by metrics.json."""
    rows = metrics.get("fused", {})
    return sorted(
        dataset
        for dataset, row in rows.items()
        if any(figures["carried"] for name, figures in row.items() if student in ("", name))
    )


def behind_api(metrics: Mapping[str, Any]) -> bool:
    """Whether the teacher is behind an API, so that its query side has no size here; by metrics.json."""
    return TEACHER not in metrics["sizes"]


def served_ms_ratio(metrics: Mapping[str, Any], student: str) -> float:
    """How many times as fast as the teacher a student answers, as `served_ms` counts; by metrics.json."""
    return float(metrics["served"][TEACHER]["p50_ms"] / metrics["served"][student]["p50_ms"])


def served_name(metrics: Mapping[str, Any], student: str) -> str:
    """A student's name, with BM25 if its release adds that: `4l with BM25`."""
    sets = fusing(metrics, student)
    if not sets:
        return student
    return f"{student} with BM25{'' if len(sets) == len(metrics['queries']) else ' on ' + ', '.join(sets)}"


def served_systems(metrics: Mapping[str, Any], dataset: str) -> dict[str, str]:
    """Student -> the system, alone or fused, by which its release answers on a data set; by metrics.json."""
    return {name: fused_name(name) if dataset in fusing(metrics, name) else name for name in metrics["retention"]}


def fused_bytes(metrics: Mapping[str, Any], student: str) -> int:
    """Size of the BM25 indexes that a student's release carries; by metrics.json."""
    return sum(metrics["fused"][dataset][student]["bytes"] for dataset in fusing(metrics, student))
