"""The texts on which students are aligned with the teacher, without any evaluation query."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import chain
from random import Random

import pyarrow as pa

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.files import sha256_text
from steps.core.leakage import evaluation_keys
from steps.core.tables import FILLER, Part, table_from_rows
from steps.core.texts import sentences
from steps.embed.collecting import Collected, Item, first_words
from steps.embed.params import EmbedParams
from steps.embed.perturbations import perturbed
from steps.embed.query_words import query_words
from steps.embed.spans import Length, mixed_length, spans

MAX_WORDS = 48  # at which a text is cut: queries are short, and long texts cost training time
SPANS_PER_DOCUMENT = 1  # windows of each document in the part spans
CASE_SHARE = 0.25  # of perturbed_queries in UPPER, Title or lower case; the rest has typos, as all have where uncased
_JOINED = 0.25  # of the spans that make up for missing texts
_FEWEST, _WORTH = 200, 0.1  # spans tried in a turn, and the share of a document's that must be new for another one


@dataclass(frozen=True)
class Sources:
    """What alignment texts are taken from.

    `corpus`: (doc_id, title, topic, content) of every document, looped over several times; `template` makes its texts.
    """

    corpus: Iterable[tuple[str, ...]]
    queries: pa.Table
    unlabelled: pa.Table
    generated: pa.Table
    template: DocumentTemplate


@dataclass(frozen=True)
class AlignmentTexts:
    """The table, and how many texts each part lost for which reason."""

    table: pa.Table
    counts: dict[str, dict[str, int]]

    def summary(self) -> str:
        """Say how many texts were chosen: `14,200 texts: 9,800 sentences, 3,000 spans, 1,400 titles`."""
        sizes = sorted(((tally["kept"], part) for part, tally in self.counts.items() if tally["kept"]), reverse=True)
        listed = ", ".join(f"{count:,} {part.replace('_', ' ')}" for count, part in sizes)
        return f"{self.table.num_rows:,} texts: {listed}" if sizes else "no texts"


def build(sources: Sources, params: EmbedParams, *, uncased: bool = False) -> AlignmentTexts:
    """Collect the parts in their order; a text belongs to the first part that has it.

    Longer texts are cut to MAX_WORDS words. Texts that equal an evaluation query after folding, before or after the
    cut of either, are left out and counted, as are perturbations of such queries, repeated texts and empty ones. Texts
    repeat each other when they are equal after folding, perturbed queries when they are the same to the letter: another
    case is what some of them are for, unless the teacher is `uncased`. A part above `max_part_texts` is sampled with
    the seed. Where all parts give fewer than `least_texts`, spans make up for it, as far as the documents allow.
    """
    forbidden = evaluation_keys(sources.queries.to_pylist(), MAX_WORDS)
    to_the_letter = "perturbed_queries" in params.parts
    collected = Collected(forbidden, MAX_WORDS, params.seed, to_the_letter=to_the_letter)
    for part in params.parts:
        collected.take(part, partial(_part, part, sources, params, uncased), params.max_part_texts)
    _fill(collected, sources, params)
    counts = {part: dict(tally) for part, tally in collected.counts.items()}
    return AlignmentTexts(table_from_rows("alignment_texts", collected.rows), counts)


def _fill(collected: Collected, sources: Sources, params: EmbedParams) -> None:
    """Add spans up to `least_texts`: documents give as many each, turn by turn, and leave when too few are new."""
    if (missing := params.least_texts - len(collected.rows)) <= 0:
        return
    queries = chain(_training_queries(sources.queries), _items(sources.unlabelled))
    length = mixed_length(query_words(item.text for item in queries).length_or(2, 12))
    active = _sample((doc_id for doc_id, *_ in sources.corpus), max(missing, _FEWEST), params.seed)
    turn = 0
    while active and missing > 0:
        turn += 1
        per_document = -(-max(missing, _FEWEST) // len(active))
        positions = collected.take(
            FILLER, partial(_fill_spans, sources, params, length, turn, per_document, set(active)), missing
        )
        new = Counter(position // per_document for position in positions)  # each document gave as many texts
        active = [doc_id for number, doc_id in enumerate(active) if new[number] >= _WORTH * per_document]
        missing = params.least_texts - len(collected.rows)


def _sample(doc_ids: Iterable[str], limit: int, seed: int) -> list[str]:
    """All documents, or the `limit` of them with the smallest hashes, in their order; a new document displaces few."""
    numbered = nsmallest(limit, enumerate(doc_ids), key=lambda pair: sha256_text(f"{seed} spans {pair[1]}"))
    return [doc_id for _, doc_id in sorted(numbered)]


def _part(part: Part, sources: Sources, params: EmbedParams, uncased: bool) -> Iterable[Item]:
    """The texts of one part, the same in the same order at every call."""
    match part:
        case "train_queries":
            return _training_queries(sources.queries)
        case "unlabelled_queries":
            return _items(sources.unlabelled)
        case "generated_queries":
            return _items(sources.generated)
        case "random_queries":
            return _random_queries(sources, params)
        case "perturbed_queries":
            return _perturbed_queries(sources.queries, params, uncased)
        case "titles":
            return (Item(title, doc_id) for doc_id, title, *_ in sources.corpus)
        case "sentences":
            return _sentences(sources.corpus)
        case "spans":
            return _spans(sources, params)


def _items(queries: pa.Table) -> Iterator[Item]:
    return (Item(row["text"], row["query_id"]) for row in queries.to_pylist())


def _training_queries(queries: pa.Table) -> Iterator[Item]:
    for row in queries.to_pylist():
        if row["split"] == "train":
            yield Item(row["text"], row["query_id"])


def _random_queries(sources: Sources, params: EmbedParams) -> Iterator[Item]:
    """EmbedDistill's control (App. E): random words in the place, and with the id, of each generated query."""
    vocabulary = query_words(item.text for item in _training_queries(sources.queries))
    if vocabulary.lengths:
        for query_id in sources.generated["query_id"].to_pylist():
            yield Item(vocabulary.random_query(_rng("random_queries", query_id, params)), query_id)


def _perturbed_queries(queries: pa.Table, params: EmbedParams, uncased: bool) -> Iterator[Item]:
    for query, query_id, *_ in _training_queries(queries):
        rng = _rng("perturbed_queries", query_id, params)
        text = perturbed(first_words(query, MAX_WORDS), rng, CASE_SHARE, uncased=uncased)
        yield Item(text, query_id, query)


def _sentences(corpus: Iterable[tuple[str, ...]]) -> Iterator[Item]:
    for doc_id, *_, content in corpus:
        for sentence in sentences(content):
            yield Item(sentence, doc_id)


def _spans(sources: Sources, params: EmbedParams) -> Iterator[Item]:
    vocabulary = query_words(item.text for item in _training_queries(sources.queries))
    length = vocabulary.length_or(4, 12)
    for doc_id, *fields in sources.corpus:
        rng, text = _rng("spans", doc_id, params), sources.template.text(*fields)
        for [span] in spans(text, rng, SPANS_PER_DOCUMENT, length, MAX_WORDS):
            yield Item(span, doc_id)


def _fill_spans(
    sources: Sources, params: EmbedParams, length: Length, turn: int, per_document: int, active: set[str]
) -> Iterator[Item]:
    """`per_document` more spans of every `active` document, other ones in every `turn`."""
    for doc_id, *fields in sources.corpus:
        if doc_id in active:
            rng, text = _rng("spans", f"{doc_id} {turn}", params), sources.template.text(*fields)
            for pieces in spans(text, rng, per_document, length, MAX_WORDS, _JOINED):
                yield Item(" ".join(pieces), doc_id, pieces=pieces)


def _rng(part: Part, source_id: str, params: EmbedParams) -> Random:
    """Random numbers for what comes from one source: they stay the same where other sources come or go."""
    return Random(f"{params.seed} {part} {source_id}")
