"""Rankers: CrossEncoder models that read a query and a document at once, and the one way to load and run them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import nn
from transformers.utils.logging import disable_progress_bar

from steps.core.errors import UserError
from steps.core.precision import Precision
from steps.core.progress import progress
from steps.core.towers import autocast, device

Pair = tuple[str, str]
"""Text of a query, text of a document."""


def load_ranker(source: str | Path, max_length: int | None = None, seed: int = 0) -> CrossEncoder:
    """Load a ranker from a folder or a Hugging Face name, in fp32 whatever it was saved in.

    `max_length`: tokens of a pair that it reads, None as it was saved. An encoder without a head of one output gets a
    random one, drawn by `seed`. UserError when it cannot be loaded, or has several outputs.
    """
    with torch.random.fork_rng(), _quiet():
        torch.manual_seed(seed)
        try:
            ranker = CrossEncoder(str(source), device=device(), max_length=max_length, trust_remote_code=False).float()
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"model {source}: cannot be loaded ({reason}); give an encoder's or a cross encoder's folder, or its"
                " name on the hub"
            ) from None
    if ranker.num_labels != 1:
        raise UserError(
            f"model {source}: gives a pair {ranker.num_labels} outputs; take a cross encoder that gives one"
        )
    for origin in ("is_local", "local_files_only"):  # would be saved, and one model have several fingerprints
        ranker.tokenizer.init_kwargs.pop(origin, None)
    ranker.set_keep_in_fp32_modules(_heads(ranker))
    return ranker


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the libraries not tell that they convert an encoder and draw its head, nor show bars."""
    disable_progress_bar()
    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _heads(ranker: CrossEncoder) -> list[str]:
    """The layer that gives the score, by name: bf16 keeps 8 bits of it, and documents would tie."""
    layers = [
        name for name, layer in ranker.named_modules() if isinstance(layer, nn.Linear) and layer.out_features == 1
    ]
    return layers[-1:]


def pair_scores(
    ranker: CrossEncoder, pairs: Sequence[Pair], *, precision: Precision, batch_size: int, what: str = ""
) -> np.ndarray:
    """Logit of each pair, float32 `(len(pairs),)`, higher is better; shows progress when `what` names the work.

    Pairs are sorted by length within windows of 64 batches, so that a batch pads little, and cut where the ranker's
    `max_seq_length` ends, the longer text first.
    """
    window = 64 * batch_size
    starts = range(0, len(pairs), window)
    scores = np.zeros(len(pairs), dtype=np.float32)
    for start in progress(starts, len(starts), what) if what else starts:
        rows = slice(start, start + window)
        with torch.inference_mode(), autocast(precision):
            scores[rows] = ranker.predict(
                list(pairs[rows]), batch_size=batch_size, show_progress_bar=False, activation_fn=nn.Identity()
            )
    return scores
