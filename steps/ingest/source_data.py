"""What every source is turned into: documents, queries and judgements with globally unique ids."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from slimtower.common.files import sha256_text

UNLABELLED = "unlabelled"  # the split of queries that nobody judged: they have a table of their own
UNLABELLED_QUERIES = "unlabelled_queries"  # a key of the section, the data set of that file's queries, and a table
MAX_QUERY_WORDS = 200  # a longer query of a log or of the unlabelled ones is left out, one of a judged set never
MAX_QUERY_IMPRESSIONS = 100_000  # of a query of a log that count, drawn by seed
ANSWERED_UNJUDGED = "answers_without_judgement"  # why a query is left out: its answers make it somebody's evaluation


class Document(NamedTuple):
    """A row of the corpus."""

    doc_id: str
    dataset: str
    title: str
    topic: str
    content: str


class Query(NamedTuple):
    """A row of the queries (train, dev, test) or of the unlabelled ones, and where it was read."""

    query_id: str
    dataset: str
    text: str
    split: str
    source: str
    line: int


class Judgement(NamedTuple):
    """A row of the qrels; its split is its query's."""

    query_id: str
    dataset: str
    doc_id: str
    grade: int
    split: str


class Satisfaction(NamedTuple):
    """A second label of a judged pair: above 0, the document satisfied."""

    query_id: str
    doc_id: str
    grade: int


class Answers(NamedTuple):
    """The answer strings of a query."""

    query_id: str
    answers: list[str]


@dataclass
class SourceData:
    """All that one source gives, and facts about the reading that belong in the report.

    `impressions`, `relevance` and `given_triplets` have the columns of the tables of these names; their ids may be
    dictionaries.
    """

    name: str
    documents: list[Document] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    satisfaction: list[Satisfaction] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    held_out: set[str] = field(default_factory=set)  # folded texts of queries that were left out as somebody's test
    facts: dict[str, Any] = field(default_factory=dict)
    impressions: pa.Table | None = None
    sessions_simulated: bool = False
    relevance: pa.Table | None = None
    given_triplets: pa.Table | None = None


def text_id(dataset: str, key: str) -> str:
    """The id of a query whose source names none, made from its folded text."""
    return f"{dataset}/{sha256_text(key)[:16]}"


def seeded_order(items: Iterable[str], seed: int, purpose: str) -> list[str]:
    """The items in an order that depends on the seed, the purpose and each item alone.

    A new item takes its place without moving the others, and no random generator's stream is involved.
    """
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}\0{purpose}\0{item}".encode()).digest())
