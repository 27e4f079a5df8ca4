"""Params of ingest: which sources are read, what counts as a usable row, how sessions are simulated."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from steps.core.params.strict import Strict

SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
PackageName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]


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


class BeirSource(Strict):
    """A folder in BEIR's layout, plain or gzip."""

    kind: Literal["beir"]
    name: SourceName
    path: str = Field(min_length=1)


Source = Annotated[ApiDocsSource | BeirSource, Field(discriminator="kind")]


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
    pool: str
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
        if "pool" in names:
            raise ValueError("sources: the name 'pool' is taken by the unlabelled queries; choose another name")
        return self
