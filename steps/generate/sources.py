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


def from_documents(ingest: Path, evaluation: set[str], limit: int, seed: int, *, whole_documents: bool) -> list[Source]:
    """Up to `limit` texts of documents: a document's title or one of its sentences, then another one.

    With `whole_documents` each text is a whole document. Documents take their turns in the order of a hash, so that a
    new one displaces few. No text is an evaluation query, and none comes twice.
    """
    sources: dict[str, Source] = {}
    at_once = max(2 * limit, _FEWEST)
    turn, before = 0, -1
    while before < len(sources) < limit:
        before = len(sources)
        for doc_id, texts in _in_order(ingest, evaluation, at_once, seed, whole_documents=whole_documents):
            if new := [text for text in texts if fold(text) not in sources]:
                text = Random(f"{seed} {doc_id} {turn}").choice(new)
                sources[fold(text)] = Source(f"{doc_id}#document{turn or ''}", text)
            if len(sources) == limit:
                break
        turn += 1
    return list(sources.values())


def _in_order(
    ingest: Path, evaluation: set[str], at_once: int, seed: int, *, whole_documents: bool
) -> Iterator[tuple[str, list[str]]]:
    """Id and texts of each document that has any, in the order of a hash; `at_once` of them are in memory."""
    template, columns = corpus_template(ingest), ["doc_id", "title", "topic", "content"]
    last = (1, 0)
    while True:
        heap: list[tuple[int, int, str, list[str]]] = []  # a heap, the last of the order first
        for row, (doc_id, title, topic, content) in enumerate(corpus_columns(ingest, columns)):
            rank = (-int(sha256_text(f"{seed} {doc_id}")[:16], 16), -row)
            if rank >= last or (len(heap) == at_once and rank < heap[0][:2]):
                continue
            texts_of_document = (
                [template.text(title, topic, content)] if whole_documents else query_like(title, content)
            )
            if texts := [text for text in texts_of_document if (key := fold(text)) and key not in evaluation]:
                (heapreplace if len(heap) == at_once else heappush)(heap, (*rank, doc_id, texts))
        yield from ((doc_id, texts) for *_, doc_id, texts in sorted(heap, reverse=True))
        if len(heap) < at_once:
            return
        last = heap[0][:2]


def corpus_sample(documents: Iterable[Sequence[str]], evaluation: set[str], limit: int, seed: int) -> list[str]:
    """A seeded sample of distinct titles and sentences of query-like length, none of them an evaluation query.

    `documents`: (title, content). Those of the smallest hashes are taken, so that memory holds no more than these.
    """
    heap: list[tuple[int, str]] = []  # a heap by hash, the largest first
    marks: set[int] = set()
    texts = (text for title, content in documents for text in query_like(title, content))
    for text in texts if limit else ():
        mark = -int(sha256_text(f"{seed} {(key := fold(text))}")[:16], 16)
        if key in evaluation or mark in marks or (len(heap) == limit and mark < heap[0][0]):
            continue
        marks.add(mark)
        if len(heap) < limit:
            heappush(heap, (mark, text))
        else:
            marks.remove(heapreplace(heap, (mark, text))[0])
    return [text for _, text in sorted(heap, reverse=True)]


def query_like(title: str, content: str) -> list[str]:
    """The title and the sentences of a document that are about as long as queries."""
    return [text for text in (title, *sentences(content)) if len(words_of(text)) in SENTENCE_WORDS]
