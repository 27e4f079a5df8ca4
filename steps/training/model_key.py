"""What of a model the result of its training depends on, as bytes to tell it by."""

import hashlib
import json
import re
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

_SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_seq_length", "max_length")
_ORIGIN_KEYS = ("_name_or_path", "transformers_version")  # where it was read from, and by what
_PASSING = re.compile(r" at 0x[0-9a-f]+|\bp=[0-9.]+")  # of a process, and the dropout that a training has set


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
