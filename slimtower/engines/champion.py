"""MLflow's champion: which release it is, and whether the engine answers with the same one."""

import os
from pathlib import Path
from typing import NamedTuple

from slimtower.common.files import folder_digest
from slimtower.registry.client import client, reaching, tracking_uri

_PREFIX = "slimtower."  # of the tags that `make promote` sets


class Champion(NamedTuple):
    """Version, student and digest of the release."""

    version: str
    student: str
    release: str


def read_champion(name: str) -> Champion | None:
    """The champion of a registered model; None where nothing was promoted."""
    uri = tracking_uri()
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        return None  # asking would make the file
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
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
    folder = releases / champion.student if champion and champion.student else None
    if folder is None or champion is None or not (folder / "manifest.json").is_file():
        return None
    return folder if folder_digest(folder) == champion.release else None


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
        f"models:/{name}@champion is version {champion.version} ({champion.student}), another release than this"
        f" {student}: they DISAGREE; `make promote STUDENT={student}` or `make rollback` moves the champion, `make"
        " deploy` without STUDENT= deploys the champion where its release is here"
    )
