"""models.json: digests of the model folders that params.yaml names, by stage, so that DVC sees when one changes.

A stage depends on its own entry, cells of a matrix on that of all: of a new cell's own `dvc repro` would find none.
"""

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, folder_digest, read_json, sha256_file, write_json
from slimtower.common.settings import PARAMS

Models = Mapping[str, Collection[str]]  # stage -> names of models: folders, or models of the hub


def write_models(models: Models, path: Path) -> None:
    """Write the digests; models of the hub, whose commit is in their name, are left out."""
    by_stage = {stage: [Path(name) for name in names if Path(name).is_dir()] for stage, names in models.items()}
    digests = {folder: folder_digest(folder, hidden=False) for folder in set[Path]().union(*by_stage.values())}
    write_json(
        path, {stage: {str(folder): digests[folder] for folder in folders} for stage, folders in by_stage.items()}
    )


def checked_models(path: Path = PARAMS) -> Models | None:
    """The models of a params.yaml that `keep_models` was given before on this cache; None for another one.

    To check a file takes seconds, as its losses load torch.
    """
    with contextlib.suppress(UserError):
        models: Models = read_json(_kept(path))
        return models
    return None


def keep_models(models: Models, path: Path = PARAMS) -> None:
    """Keep what a params.yaml that was checked names, for `checked_models`."""
    _kept(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(_kept(path), models)


def _kept(path: Path) -> Path:
    return cache_root() / "params" / f"{sha256_file(path)}.json"
