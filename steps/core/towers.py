"""Towers: SentenceTransformer models that turn queries or documents into embeddings, and the one way to run them."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers.utils.logging import disable_progress_bar

from steps.core.errors import UserError
from steps.core.precision import Precision, resolve_precision
from steps.core.progress import progress

Role = Literal["query", "document"]
_SHORT = 128  # tokens


def device() -> str:
    """`cuda` where torch sees a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_tower(source: str | Path) -> SentenceTransformer:
    """Load a tower from a folder or a Hugging Face name, in fp32 whatever it was saved in.

    UserError when it cannot be had.
    """
    disable_progress_bar()
    try:
        tower = SentenceTransformer(str(source), device=device(), trust_remote_code=False).float()
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"model {source}: cannot be loaded ({reason}); give a sentence-transformers folder or a name on the hub"
        ) from None
    settings = getattr(getattr(tower, "tokenizer", None), "init_kwargs", {})
    for origin in ("is_local", "local_files_only"):  # would be saved, and one model have several fingerprints
        settings.pop(origin, None)
    return tower


def trains_with_plain_attention(precision: Precision, longest: int) -> bool:
    """Whether texts of at most `longest` tokens train faster without PyTorch's fused attention; both compute the same.

    On a CPU its gradient is slow in bf16: for 128 texts of 20 tokens 52 ms, plain 5 ms; for 64 texts of 116 tokens
    2.2 s, plain 1.0 s.
    """
    return device() == "cpu" and resolve_precision(precision) == "bf16" and longest <= _SHORT


def autocast(precision: Precision) -> torch.autocast:
    """Autocast context for a precision on the present device."""
    return torch.autocast(device(), dtype=torch.bfloat16, enabled=resolve_precision(precision) == "bf16")


def encode(
    tower: SentenceTransformer,
    texts: list[str],
    role: Role,
    *,
    precision: Precision = "fp32",
    batch_size: int = 64,
    what: str = "",
) -> np.ndarray:
    """Embed texts in their role, float32 `(len(texts), dim)`; shows progress when `what` names the work.

    Texts are sorted by length within windows of 64 batches, so that a batch pads little.
    """
    embed = tower.encode_query if role == "query" else tower.encode_document
    window = 64 * batch_size
    starts = range(0, len(texts), window)
    parts = []
    for start in progress(starts, len(starts), what) if what else starts:
        with torch.inference_mode(), autocast(precision):
            part = embed(
                texts[start : start + window], batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True
            )
        parts.append(part.float().cpu().numpy())
    width = tower.get_embedding_dimension() or 0
    return np.concatenate(parts) if parts else np.zeros((0, width), dtype=np.float32)
