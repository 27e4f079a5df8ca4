"""Params of ingest: which sources are read, and what counts as a usable row."""

import math
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.names import LONGEST
from slimtower.common.settings import Strict
from steps.core.params import Seed
from steps.ingest.vector_params import VectorSource

MAX_QUERY_WORDS = 200  # a longer query of a log or of the unlabelled ones is left out, one of a judged set never
MAX_QUERY_IMPRESSIONS = 100_000  # of a query of a log that count, drawn by seed
UNLABELLED_QUERIES = "unlabelled_queries"  # a key of the section, the data set of that file's queries, and a table


def iso_time(text: str) -> float:
    """Unix time of an ISO 8601 date or time, UTC where it names no zone; ValueError when it is neither."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def iso_seconds(text: str) -> int:
    """The same in whole seconds."""
    return int(iso_time(text))


def _quoted(value: Any) -> Any:
    """The value; ValueError for a date without quotes, which YAML reads as no text and DVC not at all."""
    if isinstance(value, date):
        raise ValueError(f'a date has quotes here: "{value.isoformat()}"')
    return value


def _iso_or_empty(text: str) -> str:
    if text:
        try:
            iso_seconds(text)
            if (moment := datetime.fromisoformat(text)).tzinfo:
                moment.astimezone(UTC)
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


def _template(text: str) -> str:
    return DocumentTemplate(text).template


SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=LONGEST)]  # it becomes a folder
PackageName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Name = Annotated[str, Field(min_length=1)]
Template = Annotated[str, AfterValidator(_template)]
TimeForm = Annotated[str, AfterValidator(_time_form)]
Encoding = Annotated[str, AfterValidator(_encoding)]
Moment = Annotated[str, BeforeValidator(_quoted), AfterValidator(_iso_or_empty)]


class ApiDocsSource(Strict):
    """The embedded default: API documentation of installed Python packages."""

    kind: Literal["api_docs"]
    """The documentation of installed packages, read from their source files, never imported; needs no download."""
    name: SourceName
    """Name of the data set."""
    packages: list[PackageName] = Field(min_length=1)
    """Packages that are read; their locked versions fix the corpus."""
    max_documents: int = Field(default=6000, ge=1)
    """Most documents, drawn by seed; those of large packages are left out first."""
    test_queries: int = Field(default=1200, ge=1)
    """Test queries. Only queries are split: every document stays in the corpus."""
    dev_queries: int = Field(default=600, ge=0)
    """Dev queries; the rest is train."""


class ClickedValues(Strict):
    """Which values of `clicked` say what; with one list alone, every other value says the opposite."""

    true: list[str] = Field(default=[])
    """Values of a click, such as [Y]; [] and no `false` = true, t, yes, y and 1."""
    false: list[str] = Field(default=[])
    """Values of none, "" for a blank; ["", 0] alone makes every number, or time, of a click one."""

    @model_validator(mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        """YAML reads the keys, and yes and no, as booleans, and digits as numbers: all are texts here."""
        if not isinstance(value, dict):
            return value
        return {
            str(key).lower() if isinstance(key, bool) else key: [
                text for value_text in listed for text in _spellings(value_text)
            ] if isinstance(listed, list) else listed
            for key, listed in value.items()
        }  # fmt: skip


def _spellings(value: Any) -> list[str]:
    """The texts that a value in a list of YAML may have been."""
    if isinstance(value, bool):
        return ["yes", "true"] if value else ["no", "false"]
    return ["" if value is None else str(value).strip().lower()]


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


class JudgedSource(Strict):
    """What every source with graded judgements has."""

    name: SourceName
    """Name of the data set."""
    relevant_from: int = Field(default=1, ge=1)
    """Grade from which a judgement of a training query makes a positive; where 1 says related, but no answer, take 2.
    Those below count as not relevant. Dev and test keep their grades: evaluate.min_relevance.
    """


class BeirSource(JudgedSource):
    """A folder in BEIR's layout, plain or gzip, on disk or s3://."""

    kind: Literal["beir"]
    """A folder in BEIR's layout. `answers.jsonl` in it, a line `{_id: query id, answers: [text]}`, has answer strings;
    a fourth column of its qrels is a second label, satisfaction.
    """
    path: Name
    """Folder with corpus.jsonl or corpus.jsonl.gz, or s3://bucket/prefix."""
    qrels_columns: list[Literal["query", "document", "grade", "label", "-"]] = Field(default=[])
    """What the columns of qrels without a header are, "-" for one that is not read: ["-", query, document, grade]; [] =
    query, document, grade and label, or what their ids leave no doubt of.
    """
    relevance: str = ""
    """Table of a ranker's scores: a query, a document and a score a row; "" = none."""
    relevance_columns: RelevanceColumns = RelevanceColumns()
    """What that table calls its columns."""


class MsMarcoSource(JudgedSource):
    """A folder of MS MARCO's TSV files, plain or gzip."""

    kind: Literal["ms_marco"]
    path: Name
    """Folder of the TSV files."""
    triplets: str = ""
    """File of query, positive and negative passage ids, such as qidpidtriples.train.full.2.tsv.gz: a name in the folder
    or a path; "" = none.
    """
    max_triplets: int = Field(default=0, ge=0)
    """Most triplets drawn from it by seed; 0 = all (400 million in the full file)."""

    @property
    def triplets_location(self) -> str:
        """Where the file of triplets lies; "" = none."""
        inside = self.triplets and "/" not in self.triplets
        return f"{self.path.rstrip('/')}/{self.triplets}" if inside else self.triplets


class IrDatasetsSource(JudgedSource):
    """A data set of the package ir_datasets, which downloads it."""

    kind: Literal["ir_datasets"]
    id: Name
    """Its id, such as beir/scifact."""


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


class LogColumns(Strict):
    """What a click log calls its columns; without `session_id`, each query at each time is a session."""

    query: Name
    """Column of the text that was searched for."""
    doc_id: Name
    """Column of the document's id, one of the corpus."""
    rank: Name
    """Column of the rank; 1 = the first result, or 0 where it is as frequent."""
    clicked: Name
    """Column that says whether it was clicked: true/false, yes/no, t/f, y/n or 1/0."""
    timestamp: Name
    """Column of the time: ISO 8601 (UTC if it names no zone), a date with its month's name, or unix seconds, milli-,
    micro- or nanoseconds.
    """
    session_id: str = ""
    """Column of the session; "" = each query at each time is a session."""
    query_id: str = ""
    """Column of the query's id, where a relevance table names queries by id; "" = none."""


class LogSource(Strict):
    """What every search log has: the documents that it names, and when its test begins.

    A session of more than `max_session_impressions` is a robot's and left out; of a query's impressions at most
    MAX_QUERY_IMPRESSIONS count, drawn by seed.
    """

    name: SourceName
    """Name of the data set."""
    corpus: Name
    """Table of the documents that the log names: JSONL, CSV, TSV or Parquet, local or s3://."""
    corpus_columns: CorpusColumns = CorpusColumns()
    """What the corpus calls its columns."""
    relevance: str = ""
    """Table of a ranker's scores: a query, a document and a score a row; "" = none."""
    relevance_columns: RelevanceColumns = RelevanceColumns()
    """What that table calls its columns."""
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
        return iso_seconds(self.test_from) if self.test_from else math.inf


class ClickLogSource(LogSource):
    """A table of impressions: one row for each document that a search showed."""

    kind: Literal["click_log"]
    """A table of impressions; see recipes/click_log.yaml."""
    path: Name
    """Folder or file of the impressions, by day (`dt=2026-01-31/`) where they are large; local or s3://."""
    columns: LogColumns
    """What the table calls its columns."""
    clicked: ClickedValues = ClickedValues()
    """Which values say that a result was clicked, if not true, t, yes, y or 1."""


class UbiSource(LogSource):
    """Searches and events in the schema of User Behavior Insights 1.x."""

    kind: Literal["ubi"]
    """A search log in the schema of User Behavior Insights; see recipes/ubi.yaml."""
    queries: Name
    """Folder or file of the index ubi_queries, JSONL or Parquet."""
    events: Name
    """Folder or file of the index ubi_events."""
    click_actions: list[Name] = Field(default=["click"], min_length=1)
    """Events that count as clicks, in any case; click_through and purchase are others."""
    impression_actions: list[Name] = Field(default=["impression", "view"], min_length=1)
    """Events that say what a search without hits showed."""


Source = Annotated[
    ApiDocsSource | BeirSource | MsMarcoSource | IrDatasetsSource | ClickLogSource | UbiSource,
    Field(discriminator="kind"),
]


class IngestParams(Strict):
    """Which data is read, and what counts as a usable row."""

    seed: Seed = 7
    """Of the splits, the cut of the corpus and the simulated sessions."""
    sources: list[Source] = Field(min_length=1)
    """Each source becomes one data set."""
    document: Template
    """What BM25 and every tower read of a document: the fields title, topic and content, with the text between them.
    content must be there. An empty field is left out with the text in front of it. With topics: `{title} {topic}
    {content}`.
    """
    since: Moment
    """ISO date or time (UTC) from which on searches of click_log and ubi are read; "" = all."""
    until: Moment
    """ISO date or time (UTC) before which they are read; files of date partitions outside are not even fetched."""
    unlabelled_queries: str
    """TSV (or .gz) of unlabelled queries, `text` or `source<TAB>text` a line; "" = none."""
    term_scores: str = ""
    """TSV (or .gz) of `term<TAB>score`, how much a term matters, above 0; "" = none. In scripts
    without spaces between words a term is two characters.
    """
    document_vectors: dict[SourceName, VectorSource] = Field(default_factory=dict)
    """Where the documents' vectors lie, if an index has them already: by the name of the source, for every source; {} =
    the teacher embeds the documents. Ids are the source's own. A sample is compared with the teacher first.
    DVC does not see a change inside an engine: `dvc repro -f ingest` reads it anew.
    """
    max_reject_ratio: float = Field(default=0.01, ge=0, le=1)
    """Largest share of the rows of a source's files that may be unusable; above it the stage fails."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        names = [source.name for source in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"sources: the name {repeated[0]!r} is used twice; give each source its own name")
        if UNLABELLED_QUERIES in names:
            raise ValueError(
                f"sources: the name {UNLABELLED_QUERIES!r} is taken by the queries of that key; choose another name"
            )
        return self

    @model_validator(mode="after")
    def _all_sources_have_vectors_or_none(self) -> Self:
        names = {source.name for source in self.sources}
        if self.document_vectors and self.document_vectors.keys() != names:
            raise ValueError(
                f"document_vectors names {sorted(self.document_vectors)}, but the sources are {sorted(names)}; name"
                " every one of them, or none"
            )
        return self

    @model_validator(mode="after")
    def _window_is_not_empty(self) -> Self:
        if self.since and self.until and iso_seconds(self.since) >= iso_seconds(self.until):
            raise ValueError(f"since {self.since!r} is not before until {self.until!r}; until itself is not read")
        return self
