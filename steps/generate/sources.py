"""What new queries are written from: training queries, and where these are few, documents."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from pathlib import Path
from random import Random
from typing import Any

from slimtower.common.files import sha256_text
from steps.core.corpus import corpus_columns, corpus_template
from steps.core.texts import fold, sentences, words_of

SENTENCE_WORDS = range(4, 31)
_FEWEST = 1000  # documents in memory at once, where fewer texts are wanted


@dataclass(frozen=True)
class Source:
    """A text to write from; `query_id` is empty where it comes from a document."""

    name: str  # what the ids of the new queries begin with
    text: str
    query_id: str = ""


def from_queries(train: list[dict[str, Any]], limit: int, seed: int) -> list[Source]:
    """All training queries, or a seeded sample of `limit`, in their order."""
    rows = range(len(train))
    picked = sorted(Random(seed).sample(rows, limit)) if len(train) > limit else rows
    return [Source(train[row]["query_id"], train[row]["text"], train[row]["query_id"]) for row in picked]


def from_documents(ingest: Path, evaluation: set[str], limit: int, seed: int, *, whole: bool) -> list[Source]:
    """Up to `limit` texts of documents: each of them `whole`, or its title or one of its sentences, then another one.

    Documents take their turns in the order of a hash, so that a new one displaces few. No text is an evaluation query,
    and none comes twice.
    """
    found: dict[str, Source] = {}
    turn, before = 0, -1
    while before < len(found) < limit:
        before = len(found)
        for doc_id, texts in _in_order(ingest, evaluation, max(2 * limit, _FEWEST), seed, whole=whole):
            if new := [text for text in texts if fold(text) not in found]:
                text = Random(f"{seed} {doc_id} {turn}").choice(new)
                found[fold(text)] = Source(f"{doc_id}#document{turn or ''}", text)
            if len(found) == limit:
                break
        turn += 1
    return list(found.values())


def _in_order(
    ingest: Path, evaluation: set[str], at_once: int, seed: int, *, whole: bool
) -> Iterator[tuple[str, list[str]]]:
    """Id and texts of each document that has any, in the order of a hash; `at_once` of them are in memory."""
    template, columns = corpus_template(ingest), ["doc_id", "title", "topic", "content"]
    last = (1, 0)
    while True:
        held: list[tuple[int, int, str, list[str]]] = []  # a heap, the last of the order first
        for row, (doc_id, title, topic, content) in enumerate(corpus_columns(ingest, columns)):
            place = (-int(sha256_text(f"{seed} {doc_id}")[:16], 16), -row)
            if place >= last or (len(held) == at_once and place < held[0][:2]):
                continue
            made = [template.text(title, topic, content)] if whole else query_like(title, content)
            if texts := [text for text in made if (key := fold(text)) and key not in evaluation]:
                (heapreplace if len(held) == at_once else heappush)(held, (*place, doc_id, texts))
        yield from ((doc_id, texts) for *_, doc_id, texts in sorted(held, reverse=True))
        if len(held) < at_once:
            return
        last = held[0][:2]


def corpus_sample(documents: Iterable[Sequence[str]], evaluation: set[str], limit: int, seed: int) -> list[str]:
    """A seeded sample of distinct titles and sentences of query-like length, none of them an evaluation query.

    `documents`: (title, content). Those of the smallest hashes are taken, so that memory holds no more than these.
    """
    kept: list[tuple[int, str]] = []  # a heap by hash, the largest first
    taken: set[int] = set()
    texts = (text for title, content in documents for text in query_like(title, content))
    for text in texts if limit else ():
        mark = -int(sha256_text(f"{seed} {(key := fold(text))}")[:16], 16)
        if key in evaluation or mark in taken or (len(kept) == limit and mark < kept[0][0]):
            continue
        taken.add(mark)
        if len(kept) < limit:
            heappush(kept, (mark, text))
        else:
            taken.remove(heapreplace(kept, (mark, text))[0])
    return [text for _, text in sorted(kept, reverse=True)]


def query_like(title: str, content: str) -> list[str]:
    """The title and the sentences of a document that are about as long as queries."""
    return [text for text in _texts(title, content) if len(words_of(text)) in SENTENCE_WORDS]


def _texts(title: str, content: str) -> Iterator[str]:
    yield title
    yield from sentences(content)
