"""What a server answered with status 200 to `POST /v1/embeddings`: vectors, or nothing that asking again would mend."""

import base64
import binascii
import json
from typing import Any

import numpy as np

_RETRY_STATUSES = {408, 409, 425, 429}  # and all from 500 on: what may be mended by waiting


class MalformedAnswer(ValueError):
    """An answer that is whole, and not what was asked for; asking again costs the same."""


class TransientAnswer(ValueError):
    """An answer that is cut off, or says that the server is busy, which is not billed."""

    def __init__(self, reason: str, *, billed: bool) -> None:
        super().__init__(reason)
        self.billed = billed


def is_transient(status: int) -> bool:
    """Whether what has this status may be mended by asking again."""
    return status in _RETRY_STATUSES or status >= 500


def read_answer(content: bytes) -> dict[str, Any]:
    """The answer as an object with a list `data`; MalformedAnswer or TransientAnswer, which say why."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        if content.lstrip()[:1] in (b"{", b"["):
            raise TransientAnswer("JSON that is cut off", billed=True) from None
        is_page = content.lstrip()[:1] == b"<"
        raise MalformedAnswer("a web page: check base_url" if is_page else "no JSON: check base_url") from None
    if not isinstance(answer, dict):
        raise MalformedAnswer("no JSON object: check base_url")
    if error := answer.get("error"):
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, int) and is_transient(code):
            raise TransientAnswer("an error of the server", billed=False)
        raise MalformedAnswer("an error: check model and body")
    if not isinstance(answer.get("data"), list):
        raise MalformedAnswer("no list `data`: check base_url")
    return answer


def tokens_of(answer: dict[str, Any]) -> int:
    """Tokens that the answer says it cost; 0 where it does not say."""
    usage = answer.get("usage")
    try:
        return max(0, int(usage["total_tokens"])) if isinstance(usage, dict) else 0
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0


def vectors_of(answer: dict[str, Any], count: int) -> np.ndarray:
    """The vectors in the order of the texts, float32 `(count, dim)`; MalformedAnswer where they are not that."""
    rows = answer["data"]
    if len(rows) != count:
        raise MalformedAnswer(f"{len(rows)} vectors for {count} texts")
    try:
        indices = [int(row["index"]) for row in rows]
        embeddings = {index: row["embedding"] for index, row in zip(indices, rows, strict=True)}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise MalformedAnswer("a vector without index or embedding") from None
    if sorted(indices) != list(range(count)):
        raise MalformedAnswer(f"vectors with the indices {sorted(indices)[:5]} for {count} texts")
    try:
        with np.errstate(over="ignore"):
            vectors = np.array([_numbers(embeddings[index]) for index in range(count)], dtype=np.float32)
    except (TypeError, ValueError, binascii.Error):
        raise MalformedAnswer("vectors of several lengths, or not of numbers") from None
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise MalformedAnswer(f"vectors of the shape {vectors.shape[1:]}, not lists of numbers")
    if not np.isfinite(vectors).all():
        raise MalformedAnswer("a vector with NaN, null or infinity")
    if not vectors.any(axis=1).all():
        raise MalformedAnswer("a vector that is all zeros")
    return vectors


def _numbers(embedding: Any) -> Any:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    return embedding
