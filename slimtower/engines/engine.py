"""What a vector engine must be able to do, and what is kept beside a collection."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.settings import Strict, validated
from slimtower.serving.release import Hit


class Graph(NamedTuple):
    """An HNSW graph (Malkov and Yashunin 2018): links of a node, and candidates while it is built."""

    m: int
    ef_construction: int


class Rows(NamedTuple):
    """Documents of a collection: number of the first, ids, titles, and vectors float32 `(rows, dim)`."""

    first: int
    ids: list[str]
    titles: list[str]
    vectors: np.ndarray


class Shape(NamedTuple):
    """Dimensions, metric (inner_product, cosine, or what the engine calls it; empty if there is no index), and what
    a search of that index is set by."""

    dim: int
    metric: str
    knob: str = "ef"


class Engine(ABC):
    """Collections (of Postgres: tables) of ids, titles and vectors, and aliases (views) that name one of them."""

    address: ClassVar[str]
    """How TO names it, for a person."""
    packages: ClassVar[frozenset[str]]
    """The packages of its client: what they raise is the engine's failure."""

    @abstractmethod
    def __init__(self, uri: str) -> None:
        """Connect; the client is imported here, so that only who uses the engine needs it."""

    @classmethod
    @abstractmethod
    def uri_of(cls, to: str) -> str | None:
        """What the client is given for TO; None if TO names another engine."""

    @abstractmethod
    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        """The best k documents of each of `vectors` `(n, dim)`, by name or alias; `ef`: candidates looked at, or what
        the index's knob counts."""

    @abstractmethod
    def vectors(self, name: str, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """The stored vector of each of these documents that is there."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """Collections whose name begins so."""

    @abstractmethod
    def create(self, name: str, dim: int) -> None:
        """An empty collection compared by inner product, without a graph; nothing where it is there already."""

    @abstractmethod
    def count(self, name: str) -> int:
        """Documents in a collection."""

    @abstractmethod
    def upsert(self, name: str, rows: Rows) -> None:
        """Put documents in, over those of the same id; they are stored when this returns."""

    @abstractmethod
    def build(self, name: str, graph: Graph) -> None:
        """Build the graph over all documents, in place of the one that is there, and make the collection searchable."""

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """What a collection holds; UserError if there is none of that name, or one without vectors."""

    @abstractmethod
    def note(self, name: str) -> str:
        """The text that `keep` stored; empty if there is none."""

    @abstractmethod
    def keep(self, name: str, note: str) -> None:
        """Store a text with a collection."""

    @abstractmethod
    def target(self, alias: str) -> str | None:
        """The collection that an alias names."""

    @abstractmethod
    def point(self, alias: str, name: str) -> None:
        """Let the alias name the collection, in one step: searches find the old or the new one, never none."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a collection."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the engine."""


class Settings(Strict):
    """What params.yaml said of graph and search when a collection was set up; `m`: all that were to be tried."""

    target_recall: float
    m: list[int]
    ef_construction: int


class Previous(Strict):
    """What answered before; `release`: digest of the release's files, as MLflow tags it."""

    collection: str
    student: str
    release: str
    manifest: str
    ef: int
    recall: float
    settings: Settings


class Record(Strict):
    """What is kept beside a complete collection.

    `model`: the registered model. `release`: digest of the release's files, as `make promote` tags a version with.
    `manifest`: checksum of its manifest. `index`: digest of what fills the collection. `ef`: candidates a search has to
    look at, for `recall` of the exact top ten. `rolled_back`: digest of the release that gave way to this one; empty if
    this one was deployed.
    """

    student: str
    model: str
    dataset: str
    release: str
    manifest: str
    index: str
    teacher: dict[str, str]
    documents: int
    m: int
    ef: int
    recall: float
    settings: Settings
    previous: Previous | None
    rolled_back: str = ""

    def as_previous(self, collection: str) -> Previous:
        """This record in the form that the next one keeps of it."""
        fields = {"student", "release", "manifest", "ef", "recall", "settings"}
        return Previous.model_validate(self.model_dump(include=fields) | {"collection": collection})


def read_record(engine: Engine, name: str) -> Record | None:
    """What is kept beside a collection; None if it is not complete, or not made here."""
    try:
        raw: Any = json.loads(engine.note(name))
    except ValueError:
        return None  # none, or a comment of somebody else
    if not isinstance(raw, dict) or "manifest" not in raw:
        return None
    if "model" not in raw or "settings" not in raw:
        raise UserError(f"record of {name}: an earlier version wrote it; remove that collection, then deploy anew")
    return validated(Record, raw, f"record of {name}")


def one_field(names: Sequence[str], candidates: Sequence[str], where: str, kind: str) -> str:
    """The first candidate among the collection's names; UserError if it has none of them."""
    for name in candidates:
        if name in names:
            return name
    raise UserError(f"{where}: has no {kind} among {', '.join(names) or 'no fields'}; call it {candidates[0]}")
