"""What precedes a run: params.yaml is checked, data and models outside the project are listed, and DVC is asked.

A run that finds nothing to do ends here, so nothing that takes seconds to import is imported unless it is needed.
"""

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline import preflight, surroundings
from pipeline.lineage import send_finished, waits
from pipeline.pending import ask_dvc
from pipeline.stopping import stop_when_asked
from slimtower.common.errors import UserError, line
from slimtower.common.files import cache_root, folder_digest, read_json, sha256_file, sha256_text, write_json
from slimtower.common.imports import uncollected_imports
from slimtower.common.settings import PARAMS, load_section
from steps.encoders.bases import LISTED, MODELS, check_weights
from steps.ingest.listing import write_listing
from steps.ingest.params import IngestParams

SOURCES = Path("sources.json")
Models = Mapping[str, Collection[str]]  # stage -> names of models: folders, or models of the hub


def prepare(targets: list[str], root: Path) -> tuple[list[str], bool]:
    """Names of all stages, and whether DVC would run none of the `targets`; of all stages if none is named.

    UserError for bad params, a folder that cannot be written, a full disk, or data that are missing.
    """
    stop_when_asked()
    models = checked_models()
    if models is None:
        with uncollected_imports():
            from pipeline.params import load_params, named_models  # seconds: losses load torch

        models = named_models(load_params())
    for name in set[str]().union(*models.values()):
        check_weights(name)
    preflight.check_folders(root)
    keep_models(models)
    surroundings.lay_out(root)
    surroundings.mend_locks(root)
    if not surroundings.dvc_finds_git(root):
        surroundings.without_git(root)
    write_listing(load_section("ingest", IngestParams), SOURCES)
    write_models(models, MODELS)
    os.environ[LISTED] = "yes"
    stages, is_up_to_date = ask_dvc(targets)
    if waits():
        try:
            send_finished()
        except UserError as error:
            print(f"pipeline: {line(error)}", flush=True)
    return stages, is_up_to_date


def write_models(models: Models, path: Path) -> None:
    """Write models.json: digests of the model folders that params.yaml names, by stage, so that DVC sees one change.

    Models of the hub, whose commit is in their name, are left out. A stage depends on its own entry, cells of a matrix
    on that of all: of a new cell's own `dvc repro` would find none.
    """
    by_stage = {stage: [Path(name) for name in names if Path(name).is_dir()] for stage, names in models.items()}
    digests = {folder: folder_digest(folder, hidden=False) for folder in set[Path]().union(*by_stage.values())}
    write_json(
        path, {stage: {str(folder): digests[folder] for folder in folders} for stage, folders in by_stage.items()}
    )


def checked_models(path: Path = PARAMS) -> Models | None:
    """Models of a params.yaml that `keep_models` was given, or None: a check takes seconds, as losses load torch."""
    with contextlib.suppress(UserError):  # nothing is kept, or it was damaged: the file is checked anew
        models: Any = read_json(_kept(path))
        if isinstance(models, dict) and all(isinstance(names, list) for names in models.values()):
            return models
    return None


def keep_models(models: Models, path: Path = PARAMS) -> None:
    """Keep what a params.yaml that was checked names, for `checked_models`."""
    _kept(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(_kept(path), models)


def _kept(path: Path) -> Path:
    """Where it is kept what a params.yaml names, as the present code says."""
    code = [file for room in ("pipeline", "steps", "slimtower") for file in sorted(Path(room).rglob("*.py"))]
    key = sha256_text("".join(map(sha256_file, [path, *code])))
    return cache_root() / "params" / f"{key}.json"
