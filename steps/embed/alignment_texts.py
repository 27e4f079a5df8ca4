"""The texts on which students are aligned with the teacher: each once, none empty, none an evaluation query."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from itertools import chain, count
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.files import sha256_text
from steps.core.leakage import evaluation_keys
from steps.core.tables import FILLER, Part, table_from_columns
from steps.core.texts import first_words, fold, sentences, words
from steps.embed.derived_texts import Length, mixed_length, perturbed, query_words, spans
from steps.embed.params import EmbedParams

MAX_WORDS = 96  # at which a text is cut: most queries are short, and long texts cost training time
SPANS_PER_DOCUMENT = 1  # windows of each document in the part spans
WORDS = 10_000  # of each data set
CASE_SHARE = 0.25  # of perturbed_queries in UPPER, Title or lower case; the rest has typos, as all have where uncased
_JOINED = 0.25  # of the spans that make up for missing texts
_FEWEST, _WORTH = 200, 0.1  # spans tried in a turn, and the share of a document's that must be new for another one


class Item(NamedTuple):
    """A text, the id of what it came from, the query that it is a perturbation of, and the pieces it is joined of."""

    text: str
    source_id: str
    query: str = ""
    pieces: Sequence[str] = ()


class Collected:
    """The texts kept so far, by column, and of each part how many were kept or left out for which reason."""

    def __init__(self, forbidden: Mapping[str, str], max_words: int, seed: int, *, to_the_letter: bool) -> None:
        """`forbidden`: folded evaluation queries; `to_the_letter`: texts that differ in case alone may both be kept."""
        self.forbidden, self.max_words, self.seed, self.to_the_letter = forbidden, max_words, seed, to_the_letter
        self.texts: list[str] = []
        self.parts: list[Part] = []
        self.source_ids: list[str] = []
        self.counts: dict[str, Counter[str]] = {}
        self._keys: set[int] = set()  # marks of folded texts
        self._texts: set[int] = set()  # and, if it matters, of texts as they are

    def take(self, part: Part, read_items: Callable[[], Iterable[Item]], limits: Mapping[str, int]) -> array:
        """Add texts of a part, a sample of each data set that has more than its limit (0 = all are taken).

        Returns the positions of all new texts, the sampled and the others. `read_items` gives the same texts in the
        same order at every call: a large part is not held but read again.
        """
        tally: Counter[str] = Counter({"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0})
        positions = array("q")
        by_dataset: defaultdict[str, array] = defaultdict(partial(array, "q"))
        for position, item in enumerate(read_items()):
            if (reason := self._reason(item)) == "kept":
                positions.append(position)
                by_dataset[dataset_of(item.source_id)].append(position)
            tally[reason] += 1
        samples = (_drawn(group, limits[dataset], self.seed) for dataset, group in by_dataset.items())
        chosen = set(chain.from_iterable(samples))
        for position, item in enumerate(read_items() if chosen else ()):
            if position in chosen:
                self.texts.append(first_words(item.text, self.max_words))
                self.parts.append(part)
                self.source_ids.append(item.source_id)
        if undrawn := len(positions) - len(chosen):
            tally["not_drawn"] = undrawn
        tally["kept"] = len(chosen)
        self.counts.setdefault(part, Counter()).update(tally)
        return positions

    def table(self) -> pa.Table:
        """The table `alignment_texts`."""
        digests, roles = list(map(sha256_text, self.texts)), ["query"] * len(self.texts)
        return table_from_columns("alignment_texts", [digests, self.texts, self.parts, roles, self.source_ids])

    def _reason(self, item: Item) -> str:
        """`kept`, and then the text is marked as seen, or why it is left out."""
        cut = first_words(item.text, self.max_words)
        key = fold(cut)
        if not key or not words(cut):
            return "empty"
        query = first_words(item.query, self.max_words)
        if any(text in self.forbidden for text in (key, *map(fold, (item.text, item.query, query, *item.pieces)))):
            return "evaluation_query"
        if query:
            return "kept" if cut != query and _adds(self._texts, cut) else "repeated"
        if _mark(key) in self._keys or (self.to_the_letter and not _adds(self._texts, cut)):
            return "repeated"
        self._keys.add(_mark(key))
        return "kept"


def dataset_of(source_id: str) -> str:
    """The data set of a document or query, with which its id begins; "" if it names none."""
    dataset, slash, _ = source_id.partition("/")
    return dataset if slash else ""


def _adds(marks: set[int], text: str) -> bool:
    """Whether the text's mark was not there; it is from now on."""
    count = len(marks)
    marks.add(_mark(text))
    return len(marks) > count


def _mark(key: str) -> int:
    """64 bits that tell texts apart, in a fifth of the memory."""
    return int.from_bytes(blake2b(key.encode("utf-8"), digest_size=8).digest(), "big")


def _drawn(positions: Sequence[int], limit: int, seed: int) -> list[int]:
    """At most `limit` of the positions (0 = all), chosen with the seed."""
    if not limit or len(positions) <= limit:
        return list(positions)
    return [positions[index] for index in np.random.default_rng(seed).choice(len(positions), size=limit, replace=False)]


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
    case is what some of them are for, unless the teacher is `uncased`. If a data set gives a part more texts than
    `max_part_texts`, they are sampled with the seed; if all parts have fewer of it than `least_texts`, spans make up
    for it, as far as its documents allow.
    """
    forbidden = evaluation_keys(sources.queries.to_pylist(), MAX_WORDS)
    to_the_letter = "perturbed_queries" in params.parts
    collected = Collected(forbidden, MAX_WORDS, params.seed, to_the_letter=to_the_letter)
    limits: Mapping[str, int] = defaultdict(lambda: params.max_part_texts)
    for part in params.parts:
        collected.take(part, partial(_part, part, sources, params, uncased), limits)
    _fill(collected, sources, params)
    counts = {part: dict(tally) for part, tally in collected.counts.items()}
    return AlignmentTexts(collected.table(), counts)


def missing_texts(source_ids: Iterable[str], corpus: Iterable[tuple[str, ...]], least: int) -> dict[str, int]:
    """How many texts each data set of the corpus lacks to have `least`; texts of none of them count for all.

    `source_ids` are of the texts that are there; the corpus' rows begin with the documents' ids.
    """
    if not least:
        return {}
    datasets = dict.fromkeys(dataset_of(doc_id) for doc_id, *_ in corpus)
    counts = Counter(map(dataset_of, source_ids))
    shared = sum(count for dataset, count in counts.items() if dataset not in datasets)
    missing = {dataset: least - shared - counts[dataset] for dataset in datasets}
    return {dataset: count for dataset, count in missing.items() if count > 0}


def _fill(collected: Collected, sources: Sources, params: EmbedParams) -> None:
    """Add spans up to `least_texts` of each data set: its documents give as many each, turn by turn, and leave when too
    few are new.
    """
    lacking = missing_texts(collected.source_ids, sources.corpus, params.least_texts)
    if not lacking:
        return
    queries = chain(_training_queries(sources.queries), _items(sources.unlabelled))
    length = mixed_length(query_words(item.text for item in queries).length_or(2, 12))
    doc_ids = (doc_id for doc_id, *_ in sources.corpus)
    active = _sample(doc_ids, {dataset: max(missing, _FEWEST) for dataset, missing in lacking.items()}, params.seed)
    for turn in count(1):
        if not active:
            return
        sizes = Counter(map(dataset_of, active))
        shares = {dataset: -(-max(lacking[dataset], _FEWEST) // size) for dataset, size in sizes.items()}
        per_document = {doc_id: shares[dataset_of(doc_id)] for doc_id in active}
        before = len(collected.texts)
        items = partial(_fill_spans, sources, params, length, turn, per_document)
        positions = collected.take(FILLER, items, lacking)
        tried = np.array(list(per_document.values()))
        new = np.bincount(np.searchsorted(tried.cumsum(), positions, side="right"), minlength=len(active))
        for source_id in collected.source_ids[before:]:
            lacking[dataset_of(source_id)] -= 1
        goes_on = (new >= _WORTH * tried).tolist()
        active = [
            doc_id for doc_id, useful in zip(active, goes_on, strict=True) if useful and lacking[dataset_of(doc_id)]
        ]


def _sample(doc_ids: Iterable[str], limits: Mapping[str, int], seed: int) -> list[str]:
    """Documents of the data sets that have a limit, in their order: all, or those with the smallest hashes, so that a
    new document displaces few.
    """
    by_dataset: dict[str, list[tuple[int, str]]] = {dataset: [] for dataset in limits}
    for numbered in enumerate(doc_ids):
        if (dataset := dataset_of(numbered[1])) in limits:
            by_dataset[dataset].append(numbered)

    def order(numbered: tuple[int, str]) -> str:
        return sha256_text(f"{seed} spans {numbered[1]}")

    chosen = (nsmallest(limits[dataset], rows, key=order) for dataset, rows in by_dataset.items())
    return [doc_id for _, doc_id in sorted(chain.from_iterable(chosen))]


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
        case "documents":
            return (Item(sources.template.text(*fields), doc_id) for doc_id, *fields in sources.corpus)
        case "titles":
            return (Item(title, doc_id) for doc_id, title, *_ in sources.corpus)
        case "sentences":
            return _sentences(sources.corpus)
        case "spans":
            return _spans(sources, params)
        case "words":
            return _words(sources)


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
    length = mixed_length(vocabulary.length_or(2, 12))
    for doc_id, *fields in sources.corpus:
        rng, text = _rng("spans", doc_id, params), sources.template.text(*fields)
        for [span] in spans(text, rng, SPANS_PER_DOCUMENT, length, MAX_WORDS):
            yield Item(span, doc_id)


def _words(sources: Sources) -> Iterator[Item]:
    """Words of each data set, those of most documents first."""
    documents_with: dict[str, Counter[str]] = defaultdict(Counter)
    for doc_id, *fields in sources.corpus:
        documents_with[dataset_of(doc_id)].update(set(words(sources.template.text(*fields))))
    for dataset, counts in documents_with.items():
        with_letters = (entry for entry in counts.items() if not entry[0].isdigit() and len(entry[0]) > 1)
        for word, _ in nsmallest(WORDS, with_letters, key=lambda entry: (-entry[1], entry[0])):
            yield Item(word, f"{dataset}/")


def _fill_spans(
    sources: Sources, params: EmbedParams, length: Length, turn: int, per_document: Mapping[str, int]
) -> Iterator[Item]:
    """So many more spans of every document that is named, other ones in every `turn`."""
    for doc_id, *fields in sources.corpus:
        if spans_wanted := per_document.get(doc_id):
            rng, text = _rng("spans", f"{doc_id} {turn}", params), sources.template.text(*fields)
            for pieces in spans(text, rng, spans_wanted, length, MAX_WORDS, _JOINED):
                yield Item(" ".join(pieces), doc_id, pieces=pieces)


def _rng(part: Part, source_id: str, params: EmbedParams) -> Random:
    """Random numbers for what comes from one source: they stay the same where other sources come or go."""
    return Random(f"{params.seed} {part} {source_id}")
