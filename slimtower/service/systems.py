"""What answers: released students, each with its own index, as one value that is swapped whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from slimtower.common.errors import UserError
from slimtower.serving.release import Release
from slimtower.serving.tower_files import transformer_layers


class Origin(NamedTuple):
    """Where a release came from, as far as its source knows; "" for what it does not."""

    source: str
    version: str = ""
    created: str = ""
    commit: str = ""
    data: str = ""
    run: str = ""
    promoted: str = ""
    promoted_by: str = ""


@dataclass(frozen=True)
class Served:
    """A release that answers under a name: its folder's, or the alias of a registered model."""

    name: str
    release: Release
    origin: Origin
    since: str
    model_bytes: int = field(init=False)
    """As loaded: its files may be gone by now."""
    layers: int | None = field(init=False)
    """Of its transformer; 0 if it has none, None if its files do not say."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_bytes", self.release.model_bytes)
        object.__setattr__(self, "layers", transformer_layers(self.release.folder / "query_encoder", "query"))

    @property
    def identity(self) -> dict[str, str]:
        """What an answer says of the release that gave it."""
        manifest = self.release.manifest
        return {"student": manifest.student, "manifest": manifest.checksum, "version": self.origin.version}

    def facts(self) -> dict[str, Any]:
        """What the page shows of it: who made this, from what, and when."""
        manifest = self.release.manifest
        settings = manifest.encoder_settings
        return {
            "system": self.name,
            "kind": "student",
            "release": self.identity,
            "since": self.since,
            "teacher": manifest.teacher.get("weights", "")[:12],
            "layers": self.layers,
            "dim": manifest.dim,
            "format": settings.format,
            "precision": settings.precision,
            "model_bytes": self.model_bytes,
            "datasets": {name: collection.vectors for name, collection in sorted(manifest.datasets.items())},
            "fused": {name: str(fusion) for name in self.release.datasets if (fusion := self.release.fusion(name))},
            **self.origin._asdict(),
        }


@dataclass(frozen=True)
class Serving:
    """All that answers at one moment. Requests take it once: what they see of it does not change."""

    students: Mapping[str, Served]
    default: str

    def student(self, name: str) -> Served:
        """The student of that name, or the default if the name is empty; UserError for an unknown one."""
        served = self.students.get(name or self.default)
        if served is None:
            raise UserError(f"system {name!r} does not answer here; choose one of {', '.join(self.students)}")
        return served


def stamp(seconds: float) -> str:
    """Unix seconds as ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
