"""Params of ingest: which sources are read, what counts as a usable row, how sessions are simulated."""

from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from steps.core.document_texts import DocumentTemplate
from steps.core.names import LONGEST
from steps.core.params import Strict

UNLABELLED_QUERIES = "unlabelled_queries"  # a key of the section, the data set of that file's queries, and a table


def iso_seconds(text: str) -> int:
    """Unix seconds of an ISO 8601 date or time, UTC where it names no zone; ValueError when it is neither."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _unquoted(value: Any) -> Any:
    """YAML reads a date without quotes as a date; the params hold text."""
    return value.isoformat() if isinstance(value, date) else value


def _iso_or_empty(text: str) -> str:
    if text:
        try:
            iso_seconds(text)
            if (moment := datetime.fromisoformat(text)).tzinfo:
                moment.astimezone(UTC)
        except (ValueError, OverflowError):  # the year 1 of a zone may lie before the calendar
            raise ValueError('not an ISO 8601 date or time such as "2026-01-31"; "" = none') from None
    return text


def _template(text: str) -> str:
    return DocumentTemplate(text).template


SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=LONGEST)]  # it becomes a folder
PackageName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Name = Annotated[str, Field(min_length=1)]
Template = Annotated[str, AfterValidator(_template)]
Moment = Annotated[str, BeforeValidator(_unquoted), AfterValidator(_iso_or_empty)]


class ApiDocsSource(Strict):
    """The embedded default: API documentation of installed Python packages."""

    kind: Literal["api_docs"]
    name: SourceName
    packages: list[PackageName] = Field(min_length=1)
    min_summary_words: int = Field(ge=1)
    min_content_words: int = Field(ge=1)
    max_content_words: int = Field(ge=1)
    max_summary_documents: int = Field(ge=1)
    max_documents: int = Field(ge=1)
    test_queries: int = Field(ge=1)
    dev_queries: int = Field(ge=0)


class RelevanceColumns(Strict):
    """What a relevance table calls its columns; it needs one of the two that name a query."""

    query_id: Name = "query_id"
    query: Name = "query"
    doc_id: Name = "doc_id"
    score: Name = "score"


class BeirSource(Strict):
    """A folder in BEIR's layout, plain or gzip, on disk or s3://; `relevance` is a table of scores, "" = none."""

    kind: Literal["beir"]
    name: SourceName
    path: Name
    relevance: str = ""
    relevance_columns: RelevanceColumns = RelevanceColumns()


class MsMarcoSource(Strict):
    """A folder of MS MARCO's TSV files, plain or gzip.

    `triplets` is a file of query, positive and negative passage ids: a name in the folder or a path, "" = none; of its
    triplets at most `max_triplets` are drawn, 0 = all.
    """

    kind: Literal["ms_marco"]
    name: SourceName
    path: Name
    triplets: str = ""
    max_triplets: int = Field(default=0, ge=0)

    @property
    def triplets_location(self) -> str:
        """Where the file of triplets lies; "" = none."""
        inside = self.triplets and "/" not in self.triplets
        return f"{self.path.rstrip('/')}/{self.triplets}" if inside else self.triplets


class IrDatasetsSource(Strict):
    """A data set of the package ir_datasets by its id, such as `beir/scifact`."""

    kind: Literal["ir_datasets"]
    name: SourceName
    id: Name


class CorpusColumns(Strict):
    """What a corpus file calls its columns; a title or topic that is not named here may be absent."""

    doc_id: Name = "doc_id"
    title: Name = "title"
    topic: Name = "topic"
    content: Name = "content"


class LogColumns(Strict):
    """What a click log calls its columns; without `session_id`, each query at each time is a session."""

    query: Name
    doc_id: Name
    rank: Name
    clicked: Name
    timestamp: Name
    session_id: str = ""
    query_id: str = ""


class LogSource(Strict):
    """What every search log has: the documents that it names, and when its test begins.

    A session of more than `max_session_impressions` is a robot's and left out; of a query's impressions at most
    `max_query_impressions` count, drawn by seed.
    """

    name: SourceName
    corpus: Name
    corpus_columns: CorpusColumns = CorpusColumns()
    relevance: str = ""
    relevance_columns: RelevanceColumns = RelevanceColumns()
    test_from: Moment
    validation_fraction: float = Field(ge=0, lt=1)
    simulated: bool = False
    max_session_impressions: int = Field(default=1000, ge=1)
    max_query_impressions: int = Field(default=100_000, ge=1)


class ClickLogSource(LogSource):
    """A table of impressions: one row for each document that a search showed."""

    kind: Literal["click_log"]
    path: Name
    columns: LogColumns


class UbiSource(LogSource):
    """Searches and events in the schema of User Behavior Insights 1.x."""

    kind: Literal["ubi"]
    queries: Name
    events: Name
    click_actions: list[Name] = Field(default=["click"], min_length=1)


Source = Annotated[
    ApiDocsSource | BeirSource | MsMarcoSource | IrDatasetsSource | ClickLogSource | UbiSource,
    Field(discriminator="kind"),
]


class ClickParams(Strict):
    """The position-biased click model of the simulated sessions."""

    sessions_per_query: int = Field(ge=0)
    results_per_session: int = Field(ge=1)
    propensity_exponent: float = Field(ge=0)
    click_if_relevant: float = Field(ge=0, le=1)
    click_if_not: float = Field(ge=0, le=1)


class IngestParams(Strict):
    """Section `ingest` of params.yaml."""

    seed: int = Field(ge=0)
    sources: list[Source] = Field(min_length=1)
    document: Template
    since: Moment
    until: Moment
    unlabelled_queries: str
    term_scores: str
    max_reject_ratio: float = Field(ge=0, le=1)
    max_query_words: int = Field(ge=1)
    dev_fraction: float = Field(ge=0, lt=1)
    clicks: ClickParams

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sources: the name {twice[0]!r} is used twice; give each source its own name")
        if UNLABELLED_QUERIES in names:
            raise ValueError(
                f"sources: the name {UNLABELLED_QUERIES!r} is taken by the queries of that key; choose another name"
            )
        return self

    @model_validator(mode="after")
    def _window_is_not_empty(self) -> Self:
        if self.since and self.until and iso_seconds(self.since) >= iso_seconds(self.until):
            raise ValueError(f"since {self.since!r} is not before until {self.until!r}; until itself is not read")
        return self
