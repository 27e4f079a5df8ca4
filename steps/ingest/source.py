"""What every source of data is: knobs of params.yaml, the places that it reads, and the rows that it gives."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field

from slimtower.common.files import sha256_text
from slimtower.common.names import LONGEST
from slimtower.common.settings import Strict
from steps.ingest.rejects import Rejects
from steps.ingest.table_rows import PATTERNS, PLAIN, Form
from steps.ingest.times import ALWAYS, Window, iso_time

UNLABELLED = "unlabelled"  # the split of queries that nobody judged: they have a table of their own
UNLABELLED_QUERIES = "unlabelled_queries"  # a key of the section, the data set of that file's queries, and a table
MAX_QUERY_WORDS = 200  # a longer query of a log or of the unlabelled ones is left out, one of a judged set never
MAX_QUERY_IMPRESSIONS = 100_000  # of a query of a log that count, drawn by seed
ANSWERED_UNJUDGED = "answers_without_judgement"  # why a query is left out: its answers make it somebody's evaluation


def _quoted(value: Any) -> Any:
    """The value; ValueError for a date without quotes, which YAML reads as no text and DVC not at all."""
    if isinstance(value, date):
        raise ValueError(f'a date has quotes here: "{value.isoformat()}"')
    return value


def _iso_or_empty(text: str) -> str:
    try:
        if text:
            datetime.fromtimestamp(iso_time(text), UTC)
    except (ValueError, OverflowError):  # the year 1 of a zone may lie before the calendar
        raise ValueError('not an ISO 8601 date or time such as "2026-01-31"; "" = none') from None
    return text


def _time_form(text: str) -> str:
    if text and ("%" not in text or not datetime.now(UTC).strftime(text)):
        raise ValueError('no form of a time such as "%d.%m.%Y %H:%M"; "" = none')
    return text


def _encoding(text: str) -> str:
    try:
        if text and "\n".encode(text) != b"\n":
            raise ValueError("must write ASCII as ASCII does, as latin-1; UTF-16 is told by its first bytes")
    except LookupError:
        raise ValueError("is no encoding of Python's, such as latin-1 or cp1252") from None
    return text


SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=LONGEST)]  # it becomes a folder
Name = Annotated[str, Field(min_length=1)]
TimeForm = Annotated[str, AfterValidator(_time_form)]
Encoding = Annotated[str, AfterValidator(_encoding)]
Moment = Annotated[str, BeforeValidator(_quoted), AfterValidator(_iso_or_empty)]


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

    `impressions`, `relevance` and `given_triplets` are tables of these names; their ids may be dictionaries.
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


class Location(NamedTuple):
    """A place outside the project from which files are read, as sources.json lists it."""

    place: str
    """A local path, or s3://bucket/prefix."""
    key: str
    """Where params.yaml names it."""
    prefix: str = ""
    """Below which the listing has its files, to tell a source's locations apart: `corpus/`."""
    window: Window = ALWAYS
    """Partitions outside are not read."""
    patterns: Sequence[str] = ()
    """Of the files' names; none for all."""
    is_folder: bool = False
    lines: str = ""
    """What a line holds, if the place must be one file."""


class ReadContext(NamedTuple):
    """What the section `ingest` says to each of its sources."""

    key: str
    """Where params.yaml names the source, `ingest.sources[0]`."""
    window: Window
    """Searches of logs outside do not count."""
    seed: int
    rejects: Rejects
    """Takes the rows that cannot be used."""


class Source(Strict):
    """Base of all sources. A subclass in a module of `steps/ingest/kinds` is known by its `kind` in params.yaml."""

    simulates_sessions: ClassVar[bool] = False  # whether its train queries get simulated sessions

    kind: str
    """What the source is."""
    name: SourceName
    """Name of the data set."""

    @abstractmethod
    def read(self, context: ReadContext) -> SourceData:
        """All that it gives; ids begin with its name and "/". UserError where it is missing or unusable."""

    def locations(self, key: str, window: Window) -> Iterator[Location]:
        """Every place from which `read` reads files; none for what the package lock or an id fixes."""
        yield from ()


class JudgedSource(Source):
    """What every source with graded judgements has."""

    relevant_from: int = Field(default=1, ge=1)
    """Grade from which a judgement of a training query makes a positive; where 1 says related, but no answer, take 2.
    Those below count as not relevant. Dev and test keep their grades: evaluate.min_relevance.
    """


class RelevanceColumns(Strict):
    """What a relevance table calls its columns; it needs one of the two that name a query."""

    query_id: Name = "query_id"
    """Column of the query's id."""
    query: Name = "query"
    """Column of the query's text."""
    doc_id: Name = "doc_id"
    """Column of the document's id."""
    score: Name = "score"
    """Column of the ranker's score."""


class ScoredSource(Source):
    """What every source that may have a table of a ranker's scores has."""

    relevance: str = ""
    """Table of a ranker's scores: a query, a document and a score a row; "" = none."""
    relevance_columns: RelevanceColumns = RelevanceColumns()
    """What that table calls its columns."""

    @property
    def form(self) -> Form:
        """How the text files of its tables are written."""
        return PLAIN


class CorpusColumns(Strict):
    """What a corpus file calls its columns; a title or topic that is not named here may be absent."""

    doc_id: Name = "doc_id"
    """Column of the document's id."""
    title: Name = "title"
    """Column of the title."""
    topic: Name = "topic"
    """Column of the topic."""
    content: Name = "content"
    """Column of the text."""


class LogSource(ScoredSource):
    """What every search log has: the documents that it names, and when its test begins.

    A session of more than `max_session_impressions` is a robot's and left out; of a query's impressions at most
    MAX_QUERY_IMPRESSIONS count, drawn by seed.
    """

    corpus: Name
    """Table of the documents that the log names: JSONL, CSV, TSV or Parquet, local or s3://."""
    corpus_columns: CorpusColumns = CorpusColumns()
    """What the corpus calls its columns."""
    test_from: Moment
    """ISO date or time (UTC); queries first seen from then on are test, judged by their clicks."""
    validation_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the earlier queries that is dev."""
    simulated: bool = False
    """Whether the report says that the searches were simulated."""
    max_session_impressions: int = Field(default=1000, ge=1)
    """Impressions of a session, in ubi of a client_id on one day (UTC); a longer one is a robot's and left out. More
    where people share ids, as behind a proxy; of no effect where the log has none.
    """
    rank_from: Literal[0, 1] | None = None
    """Rank of the first result; null = 1, or 0 if the log's first rows have 0 about as often."""
    timestamp: TimeForm = ""
    """How the source writes times that could be read in two ways, as strptime has it: "%m/%d/%Y %H:%M"; "" = none."""
    encoding: Encoding = ""
    """Of the lines that are no UTF-8, such as latin-1; "" = such a line is no row."""
    delimiter: str = Field(default="", max_length=1)
    """Between the columns of its CSV files; "" = told by the header."""

    @property
    def cut(self) -> float:
        """`test_from` in Unix seconds; infinite where it is not given."""
        return int(iso_time(self.test_from)) if self.test_from else math.inf

    @property
    def form(self) -> Form:
        return Form(self.encoding, self.delimiter)

    def log_locations(self, key: str, **logs: tuple[str, Window]) -> Iterator[Location]:
        """The tables of the log by the fields that name them, each with its window, and those of every log."""
        fields = {"corpus": (self.corpus, ALWAYS), **logs, "relevance": (self.relevance, ALWAYS)}
        for knob, (place, window) in fields.items():
            if place:
                yield Location(place, f"{key}.{knob}", f"{knob}/", window, PATTERNS)


def text_id(dataset: str, key: str) -> str:
    """The id of a query whose source names none, made from its folded text."""
    return f"{dataset}/{sha256_text(key)[:16]}"


def seeded_order(items: Iterable[str], seed: int, purpose: str) -> list[str]:
    """The items in an order that depends on the seed, the purpose and each item alone: a new one moves no other."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}\0{purpose}\0{item}".encode()).digest())
