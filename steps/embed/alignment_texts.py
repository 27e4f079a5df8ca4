"""The texts on which students are aligned with the teacher, without any evaluation query."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

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
    """What alignment texts are taken from.

    `corpus`: (doc_id, title, content) of every document, looped over several times.
    """

    corpus: Iterable[tuple[str, ...]]
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
    seen: set[int] = set()
    rows: list[dict[str, str]] = []
    counts: dict[str, dict[str, int]] = {}
    for part in params.parts:
        tally: Counter[str] = Counter({"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0})
        places = array("q")  # the texts of a large part are not held, but read again
        for place, (text, _) in enumerate(_part(part, sources)):
            cut = _cut(text, params.max_words)
            key = fold(cut)
            if not key or not words(cut):
                tally["empty"] += 1
            elif key in forbidden or fold(text) in forbidden:
                tally["evaluation_query"] += 1
            elif (mark := _mark(key)) in seen:
                tally["repeated"] += 1
            else:
                seen.add(mark)
                places.append(place)
        chosen = set(_sample(places, params.max_part_texts, params.seed))
        for place, (text, source_id) in enumerate(_part(part, sources)):
            if place in chosen:
                text = _cut(text, params.max_words)
                rows.append(
                    {"text_sha": sha256_text(text), "text": text, "part": part, "role": "query", "source_id": source_id}
                )
        tally["kept"] = len(chosen)
        counts[part] = dict(tally)
    return AlignmentTexts(table_from_rows("alignment_texts", rows), counts)


def _cut(text: str, most: int) -> str:
    """The first `most` words."""
    return " ".join(text.split()[:most])


def _mark(key: str) -> int:
    """64 bits that tell texts apart, in a fifth of the memory."""
    return int.from_bytes(blake2b(key.encode("utf-8"), digest_size=8).digest(), "big")


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
            return ((title, doc_id) for doc_id, title, _ in sources.corpus)
        case "sentences":
            return _sentences(sources.corpus)


def _queries(queries: pa.Table, split: str) -> Iterator[Item]:
    for row in queries.to_pylist():
        if row["split"] == split:
            yield row["text"], row["query_id"]


def _sentences(corpus: Iterable[tuple[str, ...]]) -> Iterator[Item]:
    for doc_id, _, content in corpus:
        for sentence in sentences(content):
            yield sentence, doc_id


def _sample(places: Sequence[int], most: int, seed: int) -> list[int]:
    """At most `most` of the places (0 = all), chosen with the seed."""
    if not most or len(places) <= most:
        return list(places)
    return [places[row] for row in np.random.default_rng(seed).choice(len(places), size=most, replace=False)]
