"""Which alignment texts an epoch sees: each part by its repeats, a few held out to validate."""

from collections.abc import Mapping

import numpy as np

from slimtower.common.errors import UserError
from steps.core.tables import DOCUMENTS, FILLER, Part


def rows_of(parts: np.ndarray, repeats: Mapping[Part, float]) -> np.ndarray:
    """Rows of the parts that are seen; `parts[row]` names the part of a row. UserError when there is none."""
    rows = np.flatnonzero(np.isin(parts, [part for part, weight in repeats.items() if weight > 0]))
    if not len(rows):
        raise UserError(
            f"distill.repeats: no alignment text is seen (parts present: {sorted(set(parts.tolist()))});"
            " give one of them a number, or add it to embed.parts"
        )
    return rows


def hold_out(rows: np.ndarray, parts: np.ndarray, validation_texts: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Seeded split into training and at most a tenth validation rows, sorted; spans, which overlap, validate last."""
    order = np.random.default_rng((seed, 1)).permutation(rows)
    count = max(1, min(validation_texts, len(rows) // 10))
    natural, spans = order[parts[order] != FILLER], order[parts[order] == FILLER]
    if len(spans):
        half = -(-len(natural) // 2)
        order = np.concatenate([natural[:half], spans, natural[half:]])
    return np.sort(order[count:]), np.sort(order[:count])


def with_documents(
    training: np.ndarray, parts: np.ndarray, repeats: Mapping[Part, float], share: float
) -> tuple[np.ndarray, dict[Part, float]]:
    """Training rows with documents, none of which validates, and repeats that make them this share of an epoch."""
    if not share:
        return training, dict(repeats)
    documents = np.flatnonzero(parts == DOCUMENTS)
    others = sum(texts_an_epoch(times, int((parts[training] == part).sum())) for part, times in repeats.items())
    times = share / (1 - share) * others / max(1, len(documents))
    return np.union1d(training, documents), dict(repeats) | {DOCUMENTS: times}


def texts_an_epoch(times: float, members: int) -> int:
    """How many texts of a part with so many `members` an epoch sees; 2.5 times are each twice, half of them thrice."""
    return int(times) * members + round(times % 1.0 * members)


def epoch_rows(rows: np.ndarray, parts: np.ndarray, repeats: Mapping[Part, float], seed: int, epoch: int) -> np.ndarray:
    """Rows of one epoch in training order: 2.5 repeats give each text twice and half of them a third time."""
    rng = np.random.default_rng((seed, 2, epoch))
    chosen = []
    for part in sorted(repeats):
        members = rows[parts[rows] == part]
        times, fraction = divmod(repeats[part], 1.0)
        chosen += [members] * int(times)
        if fraction:
            chosen.append(rng.choice(members, size=round(fraction * len(members)), replace=False))
    return rng.permutation(np.concatenate(chosen))
