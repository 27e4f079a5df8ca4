"""Alignment texts of a few queries and documents."""

from collections.abc import Sequence
from typing import Any

import pytest

from slimtower.common.document_texts import DEFAULT, DocumentTemplate
from steps.core.tables import table_from_rows
from steps.embed import alignment_texts
from steps.embed.alignment_texts import AlignmentTexts, Sources, build
from steps.embed.params import EmbedParams

PARAMS: dict[str, Any] = {
    "parts": ["train_queries", "generated_queries", "titles", "sentences", "unlabelled_queries"],
    "max_part_texts": 0,
    "least_texts": 0,
    "precision": "fp32",
    "batch_size": 8,
    "neighbours": 4,
    "seed": 3,
}


def query(query_id: str, text: str, split: str = "") -> dict[str, str]:
    """A query of a split, or without one an unlabelled query."""
    return {"query_id": query_id, "dataset": "one", "text": text, "split": split}


def generated(*texts: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"query_id": f"a#{variant}", "source_query_id": "a", "variant": variant, "text": text, "sigma": sigma,
             "mask_ratio": 0.1} for variant, (text, sigma) in enumerate(texts)]  # fmt: skip


def texts_of(
    queries: list[dict[str, str]],
    *corpus: tuple[str, str],
    documents: Sequence[tuple[str, str, str, str]] = (),
    generated: Sequence[dict[str, Any]] = (),
    template: str = DEFAULT,
    max_words: int = 6,
    spans_per_document: int = 1,
    case_share: float = 0.25,
    **changes: Any,
) -> AlignmentTexts:
    sources = Sources(
        corpus=documents or [(f"one/d{i}", title, f"topic{i}", content) for i, (title, content) in enumerate(corpus)],
        queries=table_from_rows("queries", [row for row in queries if row["split"]]),
        unlabelled=table_from_rows("unlabelled_queries", [row for row in queries if not row["split"]]),
        generated=table_from_rows("generated_queries", generated),
        template=DocumentTemplate(template),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_texts, "MAX_WORDS", max_words)
        patch.setattr(alignment_texts, "SPANS_PER_DOCUMENT", spans_per_document)
        patch.setattr(alignment_texts, "CASE_SHARE", case_share)
        return build(sources, EmbedParams.model_validate(PARAMS | changes))


def pairs(texts: AlignmentTexts) -> list[tuple[str, str]]:
    return [(row["part"], row["text"]) for row in texts.table.to_pylist()]
