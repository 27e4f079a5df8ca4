"""Do the teacher's vectors tell texts apart? Those of a broken model are all alike, or differ by length alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slimtower.common.errors import UserError
from steps.core.texts import fold
from steps.core.vector_store import Texts

_SAMPLE = 1000  # texts that are compared
_MIN_TEXTS = 10  # different ones; fewer may well be alike
_MIN_DISTANCE = 1e-4  # mean cosine distance; of models that are not made for search it is still above 1e-3
_EQUAL = 2e-6  # cosine distance, above what float16 rounds
_TWINS = 0.5  # share of different texts whose vector another text has too


def drawn_rows(count: int, seed: int) -> np.ndarray:
    """Rows of the texts that are compared, ascending, drawn by seed where there are many."""
    if count <= _SAMPLE:
        return np.arange(count)
    return np.sort(np.random.default_rng((seed, 9)).choice(count, _SAMPLE, replace=False))


def check_sample_spread(vectors: Path, texts: Texts, kind: str, teacher: str, seed: int) -> None:
    """`check_spread` of a sample of the vectors in a file."""
    rows = drawn_rows(len(texts), seed)
    sampled = set(rows.tolist())
    sampled_texts = [text for row, text in enumerate(texts) if row in sampled]
    check_spread(np.load(vectors, mmap_mode="r")[rows], sampled_texts, kind, teacher)


def check_spread(vectors: np.ndarray, texts: Sequence[str], kind: str, teacher: str) -> None:
    """UserError where vectors `(n, dim)` say nothing about their `n` texts; equal texts may have equal vectors.

    Too alike are vectors whose mean cosine is 1 but for 1e-4, and those of which more than half are another text's.
    """
    different = list({fold(text): row for row, text in enumerate(texts)}.values())
    if len(different) < _MIN_TEXTS:
        return
    sample = np.asarray(vectors[different], dtype=np.float32)
    sample[~sample.any(axis=1)] = 1.0  # of no length, all alike
    sample /= np.maximum(np.linalg.norm(sample, axis=1, keepdims=True), 1e-12)
    cosines = sample @ sample.T
    off_diagonal = ~np.eye(len(sample), dtype=bool)
    distance = float(1 - cosines[off_diagonal].mean())
    twins = float((np.where(off_diagonal, cosines, -1).max(axis=1) > 1 - _EQUAL).mean())
    if distance >= _MIN_DISTANCE and twins <= _TWINS:
        return
    why = (
        f"lie at a mean cosine of {1 - distance:.6f}"
        if distance < _MIN_DISTANCE
        else f"are one another's for {twins:.0%} of the texts"
    )
    raise UserError(
        f"embed: the vectors of {len(sample)} different {kind} {why}, so they say nothing: the teacher {teacher} cannot"
        " tell texts apart; look at its weights and its vocabulary, and at max_document_length if all begin alike"
    )
