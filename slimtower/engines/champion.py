"""MLflow's champion: which release it is, and whether the engine answers with the same one."""

from pathlib import Path
from typing import NamedTuple

from slimtower.common.files import folder_digest
from slimtower.registry.client import client, reaching, sqlite_file

_PREFIX = "slimtower."  # of the tags that `make promote` sets


class Champion(NamedTuple):
    """Version, student and digest of the release."""

    version: str
    student: str
    release: str

    def __str__(self) -> str:
        return f"version {self.version} ({self.student})"


def read_champion(name: str) -> Champion | None:
    """The champion of a registered model; None where nothing was promoted."""
    if (database := sqlite_file()) and not database.is_file():
        return None  # asking would make the file
    with reaching():
        api = client()
        models = api.search_registered_models(filter_string=f"name = '{name}'")
        version = models[0].aliases.get("champion") if models else None
        if version is None:
            return None
        tags = api.get_model_version(name, str(version)).tags
    return Champion(str(version), tags.get(f"{_PREFIX}student", ""), tags.get(f"{_PREFIX}release", ""))


def local_release(champion: Champion | None, releases: Path) -> Path | None:
    """The champion's release among those in a folder; None where it is not there, or another of that name is."""
    if champion is None or not champion.student:
        return None
    folder = releases / champion.student
    same = (folder / "manifest.json").is_file() and folder_digest(folder) == champion.release
    return folder if same else None


def agreement(name: str, champion: Champion | None, student: str, release: str, *, fused: bool) -> str:
    """One line: does the engine answer with the champion's release? One that is `fused` with BM25 answers otherwise
    where it is served."""
    if champion is None:
        return f"MLflow has no champion of {name} to agree with; `make promote` makes one"
    if champion.release == release:
        same = f"models:/{name}@champion is version {champion.version}, the same release"
        if fused:
            return f"{same}, but its own answers are fused with BM25, the engine's are not: encoder and index agree"
        return f"{same}: they agree"
    return (
        f"models:/{name}@champion is {champion}, another release than this {student}: they DISAGREE; `make promote"
        f" STUDENT={student}` or `make rollback` moves the champion, `make deploy` without STUDENT= deploys the"
        " champion where its release is here"
    )
