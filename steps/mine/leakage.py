"""Leakage audit: no text of an evaluation query may train."""

from collections.abc import Iterable

from steps.core.errors import UserError
from steps.core.texts import fold


def audit(used: Iterable[tuple[str, str]], evaluation: Iterable[tuple[str, str]], source: str) -> dict[str, int]:
    """Count the (query_id, text) compared; UserError when a used text equals an evaluation text after folding."""
    forbidden = {fold(text): query_id for query_id, text in evaluation}
    leaks: list[tuple[str, str, str]] = []
    compared = 0
    for query_id, text in used:
        compared += 1
        if (twin := forbidden.get(fold(text))) is not None:
            leaks.append((query_id, twin, text))
    if leaks:
        query_id, twin, text = min(leaks)
        raise UserError(
            f"{source}: {len(leaks)} queries of the triplets have the text of an evaluation query, first {query_id}"
            f" = {twin} ({text[:80]!r}); give queries of equal text the same split in ingest"
        )
    return {"evaluation_texts": len(forbidden), "query_texts_compared": compared, "leaks": 0}
