"""Params of ingest: which sources are read, where an index' vectors lie, and what counts as a usable row."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.settings import Strict, Variable
from steps.core.params import Seed
from steps.ingest.kinds import AnySource
from steps.ingest.source import UNLABELLED_QUERIES, Moment, Name, SourceName
from steps.ingest.times import Window


def _template(text: str) -> str:
    return DocumentTemplate(text).template


def _without_login(address: str) -> str:
    if "://" in address and re.search("[@?]", address):
        raise ValueError(
            "no login and no query may be in it, as it is written down; name the variable of the environment that holds"
            " the key in key_variable (Milvus: token_variable)"
        )
    return address


Address = Annotated[str, Field(min_length=1), AfterValidator(_without_login)]


class VectorFiles(Strict):
    """Parquet with a column of ids and one of vectors, or .npy `(n, dim)` with a text file of ids."""

    kind: Literal["files"]
    path: Name
    """File or folder, local or on s3://; several .npy count in the order of their names."""
    ids: str = ""
    """Text file of one id a line, in the order of the rows of the .npy; "" for Parquet."""
    id_column: Name = "id"
    """Column of ids."""
    vector_column: Name = "vector"
    """Column of vectors."""


class PgvectorTable(Strict):
    """A table of Postgres with pgvector."""

    kind: Literal["pgvector"]
    url_variable: Annotated[Variable, Field(min_length=1)]
    """Variable of the environment that holds the address, postgresql://..."""
    table: Name
    """Name of the table."""
    id_column: Name = "id"
    """Column of ids."""
    vector_column: Name = "embedding"
    """Column of vectors."""


class QdrantCollection(Strict):
    """A collection of Qdrant at a URL, or in a local folder."""

    kind: Literal["qdrant"]
    url: Address
    """Address of the server, without a login, or a local folder."""
    collection: Name
    """Name of the collection."""
    key_variable: Variable = ""
    """Variable of the environment that holds the key; "" = none."""
    id_field: str = ""
    """Field of the payload that holds the document's id; "" = the point's own id."""
    vector: str = ""
    """Name of the vector, where points have several."""


class MilvusCollection(Strict):
    """A collection of Milvus at a URI, or in a file of Milvus Lite."""

    kind: Literal["milvus"]
    uri: Address
    """Address of the server, without a login, or a file of Milvus Lite."""
    collection: Name
    """Name of the collection."""
    token_variable: Variable = ""
    """Variable of the environment that holds the token; "" = none."""
    id_field: Name = "id"
    """Field of ids."""
    vector_field: Name = "vector"
    """Field of vectors."""


VectorSource = Annotated[VectorFiles | PgvectorTable | QdrantCollection | MilvusCollection, Field(discriminator="kind")]


class IngestParams(Strict):
    """Which data is read, and what counts as a usable row."""

    seed: Seed = 7
    """Of the splits, the cut of the corpus and the simulated sessions."""
    sources: list[AnySource] = Field(min_length=1)
    """Each source becomes one data set."""
    document: Annotated[str, AfterValidator(_template)]
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
        if self.since and self.until and self.window.start >= self.window.end:
            raise ValueError(f"since {self.since!r} is not before until {self.until!r}; until itself is not read")
        return self

    @property
    def window(self) -> Window:
        """From `since` to before `until`."""
        return Window.of(self.since, self.until)
