"""Checkpoints of trainings: where they lie, what tells a model, files that a kill may have cut, who has them."""

import errno
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from slimtower.common.errors import line
from slimtower.common.files import cache_root, try_lock
from steps.core import leases
from steps.core.code import code_digest
from steps.core.versions import library_versions
from steps.encoders.precision import resolve_precision
from steps.training.distributed import broadcast, rank

Loaded = TypeVar("Loaded")
_SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_seq_length", "max_length")
_ORIGIN_KEYS = ("_name_or_path", "transformers_version")  # where it was read from, and by what
_PASSING = re.compile(r" at 0x[0-9a-f]+|\bp=[0-9.]+")  # of a process, and the dropout that a training has set


def keyed_folder(
    stage: str, model: nn.Module, texts: Iterable[str], knobs: Mapping[str, Any], code: Sequence[str], more: str = ""
) -> Path:
    """Folder below SLIMTOWER_CACHE of trainings of an equal model, texts, knobs, modules (`code`) and `more`."""
    key = hashlib.sha256(f"{code_digest(*code)} {library_versions()} {more}".encode())
    key.update(json.dumps({**knobs, "computes_in": resolve_precision(knobs["precision"])}, sort_keys=True).encode())
    key.update(model_key(model))
    for text in texts:
        key.update(text.encode())
    return cache_root() / stage / key.hexdigest()[:32]


def load_checkpoint_or_none(path: Path, load: Callable[[Path], Loaded], stage: str) -> Loaded | None:
    """What `load` makes of a file; None without one, or if it cannot be read: then rank 0 says so and removes it."""
    try:
        return load(path)
    except FileNotFoundError:
        return None
    except (RuntimeError, EOFError, OSError, ValueError, UnpicklingError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of some cut files it is EINVAL
            raise
        if rank() == 0:
            print(f"{stage}: {path} cannot be read ({line(error)[:80]}); begins anew", file=sys.stderr)
            path.unlink(missing_ok=True)
        return None


def acquire(checkpoints: Path, stage: str) -> None:
    """`leases.acquire` for all processes of a training: each waits for the other run; one line says so."""
    leases.acquire(checkpoints, "" if rank() else f"{stage}: waits for another run of this training", _take_lock)


def _take_lock(lock: Path) -> bool:
    return bool(broadcast([float(rank() == 0 and try_lock(lock))])[0])  # no process waits in it for long


def model_key(model: nn.Module) -> bytes:
    """Digest of a model's weights, modules, settings and tokenizer: equal ones train alike, wherever they were read."""
    key = hashlib.sha256(_PASSING.sub("", repr(model)).encode())
    for name in _SETTINGS:
        value = getattr(model, name, None)
        key.update(f"{name} {sorted(value.items()) if isinstance(value, dict) else value}\n".encode())
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            config = {name: value for name, value in part.config.to_dict().items() if name not in _ORIGIN_KEYS}
            key.update(json.dumps(config, sort_keys=True, default=str).encode())
    key.update(_tokenizer(getattr(model, "tokenizer", None)))
    for name, tensor in sorted(model.state_dict().items()):
        key.update(name.encode() + tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return key.digest()


def _tokenizer(tokenizer: Any) -> bytes:
    """Vocabulary and rules; not where it cuts and how it pads, which change with the batch that it has read last."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        rules = json.loads(backend.to_str())
        return json.dumps(rules | {"truncation": None, "padding": None}, sort_keys=True).encode()
    return repr(sorted(tokenizer.get_vocab().items())).encode() if hasattr(tokenizer, "get_vocab") else b""
