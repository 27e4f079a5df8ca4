"""The texts on which students are aligned with the teacher, without any evaluation query."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from steps.core.files import sha256_text
from steps.core.leakage import evaluation_keys
from steps.core.tables import Part, table_from_rows
from steps.core.texts import document_text, fold, sentences, words
from steps.embed.params import EmbedParams
from steps.embed.perturbations import perturbed
from steps.embed.query_words import query_words
from steps.embed.spans import spans


class Item(NamedTuple):
    """A text, the id of what it came from, and the query that it is a perturbation of."""

    text: str
    source_id: str
    query: str = ""


@dataclass(frozen=True)
class Sources:
    """What alignment texts are taken from.

    `corpus`: (doc_id, title, content) of every document, looped over several times.
    """

    corpus: Iterable[tuple[str, ...]]
    queries: pa.Table
    unlabelled: pa.Table
    generated: pa.Table


@dataclass(frozen=True)
class AlignmentTexts:
    """The table, and how many texts each part lost for which reason."""

    table: pa.Table
    counts: dict[str, dict[str, int]]


def build(sources: Sources, params: EmbedParams, *, uncased: bool = False) -> AlignmentTexts:
    """Collect the parts in their order; a text belongs to the first part that has it.

    Longer texts are cut to `max_words` words. Texts that equal an evaluation query after folding, before or after the
    cut of either, are left out and counted, as are perturbations of such queries, repeated texts and empty ones. Texts
    repeat each other when they are equal after folding, perturbed queries when they are the same to the letter: another
    case is what some of them are for, unless the teacher is `uncased`. A part above `max_part_texts` is sampled with
    the seed.
    """
    forbidden = evaluation_keys(sources.queries.to_pylist(), params.max_words)
    seen = _Seen("perturbed_queries" in params.parts)
    rows: list[dict[str, str]] = []
    counts: dict[str, dict[str, int]] = {}
    for part in params.parts:
        tally: Counter[str] = Counter({"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0})
        places = array("q")  # the texts of a large part are not held, but read again
        for place, item in enumerate(_part(part, sources, params, uncased)):
            if (reason := _reason(item, forbidden, seen, params.max_words)) == "kept":
                places.append(place)
            tally[reason] += 1
        chosen = set(_sample(places, params.max_part_texts, params.seed))
        for place, item in enumerate(_part(part, sources, params, uncased)):
            if place in chosen:
                text = _cut(item.text, params.max_words)
                rows.append(
                    {
                        "text_sha": sha256_text(text),
                        "text": text,
                        "part": part,
                        "role": "query",
                        "source_id": item.source_id,
                    }
                )
        tally["kept"] = len(chosen)
        counts[part] = dict(tally)
    return AlignmentTexts(table_from_rows("alignment_texts", rows), counts)


def _reason(item: Item, forbidden: Mapping[str, str], seen: "_Seen", max_words: int) -> str:
    """`kept`, and then the text is marked as seen, or why it is left out."""
    cut = _cut(item.text, max_words)
    key = fold(cut)
    if not key or not words(cut):
        return "empty"
    query = _cut(item.query, max_words)
    if key in forbidden or any(fold(text) in forbidden for text in (item.text, item.query, query)):
        return "evaluation_query"
    if query:
        return "kept" if cut != query and seen.adds_text(cut) else "repeated"
    return "kept" if seen.adds(key, cut) else "repeated"


class _Seen:
    """Which texts there were."""

    def __init__(self, to_the_letter: bool) -> None:
        """Keep the texts as they are too, beside their folded keys, or the keys alone."""
        self.to_the_letter = to_the_letter
        self.keys: set[int] = set()
        self.texts: set[int] = set()

    def adds(self, key: str, text: str) -> bool:
        """Whether neither the folded key nor the text was there; both are from now on."""
        mark = _mark(key)
        if mark in self.keys or (self.to_the_letter and not self.adds_text(text)):
            return False
        self.keys.add(mark)
        return True

    def adds_text(self, text: str) -> bool:
        """Whether the text was not there to the letter; it is from now on, without its key."""
        mark = _mark(text)
        if mark in self.texts:
            return False
        self.texts.add(mark)
        return True


def _cut(text: str, most: int) -> str:
    """The first `most` words."""
    return " ".join(text.split()[:most])


def _mark(key: str) -> int:
    """64 bits that tell texts apart, in a fifth of the memory."""
    return int.from_bytes(blake2b(key.encode("utf-8"), digest_size=8).digest(), "big")


def _part(part: Part, sources: Sources, params: EmbedParams, uncased: bool) -> Iterable[Item]:
    """The texts of one part, the same in the same order at every call."""
    match part:
        case "train_queries":
            return _training_queries(sources.queries)
        case "unlabelled_queries":
            return (Item(row["text"], row["query_id"]) for row in sources.unlabelled.to_pylist())
        case "generated_queries":
            return (Item(row["text"], row["query_id"]) for row in sources.generated.to_pylist())
        case "random_queries":
            return _random_queries(sources, params)
        case "perturbed_queries":
            return _perturbed_queries(sources.queries, params, uncased)
        case "titles":
            return (Item(title, doc_id) for doc_id, title, _ in sources.corpus)
        case "sentences":
            return _sentences(sources.corpus)
        case "spans":
            return _spans(sources, params)


def _training_queries(queries: pa.Table) -> Iterator[Item]:
    for row in queries.to_pylist():
        if row["split"] == "train":
            yield Item(row["text"], row["query_id"])


def _random_queries(sources: Sources, params: EmbedParams) -> Iterator[Item]:
    """EmbedDistill's control (App. E): random words in the place, and with the id, of each generated query."""
    drawn = query_words(item.text for item in _training_queries(sources.queries))
    if drawn.lengths:
        for query_id in sources.generated["query_id"].to_pylist():
            yield Item(drawn.random_query(_rng("random_queries", query_id, params)), query_id)


def _perturbed_queries(queries: pa.Table, params: EmbedParams, uncased: bool) -> Iterator[Item]:
    for query, query_id, _ in _training_queries(queries):
        rng = _rng("perturbed_queries", query_id, params)
        text = perturbed(_cut(query, params.max_words), rng, params.case_share, uncased=uncased)
        yield Item(text, query_id, query)


def _sentences(corpus: Iterable[tuple[str, ...]]) -> Iterator[Item]:
    for doc_id, _, content in corpus:
        for sentence in sentences(content):
            yield Item(sentence, doc_id)


def _spans(sources: Sources, params: EmbedParams) -> Iterator[Item]:
    drawn = query_words(item.text for item in _training_queries(sources.queries))
    for doc_id, title, content in sources.corpus:
        rng = _rng("spans", doc_id, params)
        for text in spans(document_text(title, content), rng, params.spans_per_document, drawn, params.max_words):
            yield Item(text, doc_id)


def _rng(part: Part, source_id: str, params: EmbedParams) -> Random:
    """Random numbers for what comes from one source: they stay the same where other sources come or go."""
    return Random(f"{params.seed} {part} {source_id}")


def _sample(places: Sequence[int], most: int, seed: int) -> list[int]:
    """At most `most` of the places (0 = all), chosen with the seed."""
    if not most or len(places) <= most:
        return list(places)
    return [places[row] for row in np.random.default_rng(seed).choice(len(places), size=most, replace=False)]
