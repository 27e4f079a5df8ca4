"""The texts on which students are aligned with the teacher, without any evaluation query."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from steps.core.files import sha256_text
from steps.core.leakage import evaluation_keys
from steps.core.params.embed import EmbedParams, Part
from steps.core.tables import table_from_rows
from steps.core.texts import fold, sentences, words

Item = tuple[str, str]  # text, id of what it came from


@dataclass(frozen=True)
class Sources:
    """The tables that alignment texts are taken from."""

    corpus: pa.Table
    queries: pa.Table
    generated: pa.Table


@dataclass(frozen=True)
class AlignmentTexts:
    """The table, and how many texts each part lost for which reason."""

    table: pa.Table
    counts: dict[str, dict[str, int]]


def build(sources: Sources, params: EmbedParams) -> AlignmentTexts:
    """Collect the parts in their order; a text belongs to the first part that has it.

    Longer texts are cut to `max_words` words. Texts that equal an evaluation query after folding, before or after the
    cut of either, are left out and counted, as are repeated and empty ones. A part above `max_part_texts` is sampled
    with the seed.
    """
    forbidden = evaluation_keys(sources.queries.to_pylist(), params.max_words)
    seen: set[str] = set()
    rows: list[dict[str, str]] = []
    counts: dict[str, dict[str, int]] = {}
    for part in params.parts:
        tally: Counter[str] = Counter({"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0})
        kept: list[dict[str, str]] = []
        for text, source_id in _part(part, sources):
            whole, text = text, " ".join(text.split()[: params.max_words])
            key = fold(text)
            if not key or not words(text):
                tally["empty"] += 1
            elif key in forbidden or fold(whole) in forbidden:
                tally["evaluation_query"] += 1
            elif key in seen:
                tally["repeated"] += 1
            else:
                seen.add(key)
                kept.append(
                    {"text_sha": sha256_text(text), "text": text, "part": part, "role": "query", "source_id": source_id}
                )
        kept = _sample(kept, params.max_part_texts, params.seed)
        tally["kept"] = len(kept)
        rows += kept
        counts[part] = dict(tally)
    return AlignmentTexts(table_from_rows("alignment_texts", rows), counts)


def _part(part: Part, sources: Sources) -> Iterable[Item]:
    """The texts of one part with the id of what each came from."""
    match part:
        case "train_queries":
            return _queries(sources.queries, "train")
        case "pool":
            return _queries(sources.queries, "pool")
        case "generated_queries":
            return ((row["text"], row["query_id"]) for row in sources.generated.to_pylist())
        case "titles":
            return ((row["title"], row["doc_id"]) for row in sources.corpus.to_pylist())
        case "sentences":
            return _sentences(sources.corpus)


def _queries(queries: pa.Table, split: str) -> Iterator[Item]:
    for row in queries.to_pylist():
        if row["split"] == split:
            yield row["text"], row["query_id"]


def _sentences(corpus: pa.Table) -> Iterator[Item]:
    for row in corpus.to_pylist():
        for sentence in sentences(row["content"]):
            yield sentence, row["doc_id"]


def _sample(rows: list[dict[str, str]], most: int, seed: int) -> list[dict[str, str]]:
    """At most `most` rows (0 = all), chosen with the seed, in their order."""
    if not most or len(rows) <= most:
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), size=most, replace=False)
    return [rows[i] for i in np.sort(chosen)]
