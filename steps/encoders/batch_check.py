"""Does a text have the same vector alone and beside a longer one? Else what is indexed depends on the batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from slimtower.common.errors import UserError
from slimtower.common.names import ROLES
from steps.encoders.towers import encode, endpoint_of, route

_TEXTS = ("a", "two words", "a text of a few more words", "how do I sum the rows of a table?")
_LONG = " ".join(["much longer than all the others"] * 12)
_MAX_SHIFT = 0.1  # of the texts' mean distance; in fp32 what padding adds is rounding, 1e-5
_ALIKE = 1e-4  # of a vector's length: texts that lie closer than this say nothing of padding


def check_batches(embed: Callable[[list[str]], list[np.ndarray]], tokenizer: Any, name: str) -> None:
    """UserError if the vectors, or scores, that `embed` gives a text depend on the longer texts of its batch."""
    alone = [embed([text])[0] for text in _TEXTS]
    together = embed([*_TEXTS, _LONG])[: len(_TEXTS)]
    if not all(np.isfinite(array).all() for array in (*alone, *together)):
        return  # the stage says so itself
    middles = np.stack([array.reshape(-1, array.shape[-1]).mean(axis=0) for array in alone]).astype(np.float64)
    shifts = np.stack([array.reshape(-1, array.shape[-1]).mean(axis=0) for array in together]) - middles
    pairs = [(i, j) for i in range(len(_TEXTS)) for j in range(i)]
    distance = float(np.mean([np.linalg.norm(middles[i] - middles[j]) for i, j in pairs]))
    farthest = float(np.linalg.norm(shifts, axis=1).max())
    if distance <= _ALIKE * float(np.linalg.norm(middles, axis=1).mean()) or farthest <= _MAX_SHIFT * distance:
        return
    side = getattr(tokenizer, "padding_side", "right")
    then = f"take a model whose padding (on the {side}) does not count"
    if side == "left":
        then = "padding on the left moves it to other positions: set padding_side: right in tokenizer_config.json"
    raise UserError(
        f"{name}: the vector of a text depends on the texts beside it in a batch: it moves by"
        f" {farthest / distance:.0%} of the distance between texts; {then}"
    )


def check_tower_batches(tower: SentenceTransformer, name: str) -> None:
    """`check_batches` of both routes of a SentenceTransformer; nothing of one that a server reads for."""
    for role in ROLES:
        if endpoint_of(tower, role) is None:
            tokenizer = getattr(route(tower, role)[0], "tokenizer", None)
            check_batches(lambda texts: list(encode(tower, texts, role)), tokenizer, name)  # noqa: B023
