"""What new queries are written from: training queries, and where these are few, documents."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from steps.core.texts import document_text, fold, sentences

SENTENCE_WORDS = range(4, 31)


@dataclass(frozen=True)
class Source:
    """A text to write from; `query_id` is empty where it comes from a document."""

    name: str  # what the ids of the new queries begin with
    text: str
    query_id: str = ""


def from_queries(train: list[dict[str, Any]], limit: int, seed: int) -> list[Source]:
    """All training queries, or a seeded sample of `limit`, in their order."""
    rows = range(len(train))
    picked = sorted(random.Random(seed).sample(rows, limit)) if len(train) > limit else rows
    return [Source(train[row]["query_id"], train[row]["text"], train[row]["query_id"]) for row in picked]


def from_documents(corpus: pa.Table, evaluation: set[str], limit: int, seed: int, *, whole: bool) -> list[Source]:
    """A text of each of up to `limit` documents, drawn by seed: `whole`, or its title or a sentence of it.

    No text is an evaluation query, and none comes twice. A document without a text of query-like length gives none.
    """
    draw = random.Random(seed)
    rows = list(range(corpus.num_rows))
    draw.shuffle(rows)
    ids, titles, contents = (corpus[name] for name in ("doc_id", "title", "content"))
    found: dict[str, Source] = {}
    for row in rows:
        if len(found) == limit:
            break
        name, title, content = ids[row].as_py(), titles[row].as_py(), contents[row].as_py()
        texts = [document_text(title, content)] if whole else query_like(title, content)
        if new := [text for text in texts if (key := fold(text)) and key not in evaluation and key not in found]:
            text = draw.choice(new)
            found[fold(text)] = Source(f"{name}#document", text)
    return list(found.values())


def corpus_sample(corpus: pa.Table, evaluation: set[str], limit: int, seed: int) -> list[str]:
    """A seeded sample of distinct titles and sentences of query-like length, none of them an evaluation query."""
    texts: dict[str, str] = {}
    for title, content in zip(corpus["title"].to_pylist(), corpus["content"].to_pylist(), strict=True):
        for text in query_like(title, content):
            if (key := fold(text)) not in evaluation:
                texts.setdefault(key, text)
    pool = list(texts.values())
    return random.Random(seed).sample(pool, min(limit, len(pool)))


def query_like(title: str, content: str) -> list[str]:
    """The title and the sentences of a document that are about as long as queries."""
    return [text for text in _texts(title, content) if len(text.split()) in SENTENCE_WORDS]


def _texts(title: str, content: str) -> Iterator[str]:
    yield title
    yield from sentences(content)
