"""Where the vectors of an index lie that is there already: `ingest.document_vectors`."""

from typing import Annotated, Literal

from pydantic import Field

from steps.core.params import Strict

Named = Annotated[str, Field(min_length=1)]


class VectorFiles(Strict):
    """Parquet with a column of ids and one of vectors, or .npy `(n, dim)` beside `ids`, a text file of one id a line.

    `path` is a file or a folder, local or on s3://; several .npy count in the order of their names.
    """

    kind: Literal["files"]
    path: Named
    """Of a file or a folder."""
    ids: str = ""
    """Text file of one id a line, for .npy."""
    id_column: Named = "id"
    """Column of ids."""
    vector_column: Named = "vector"
    """Column of vectors."""


class PgvectorTable(Strict):
    """A table of Postgres with pgvector; `url_variable` of the environment holds postgresql://..."""

    kind: Literal["pgvector"]
    url_variable: Named
    """Variable of the environment that holds the address."""
    table: Named
    """Its name."""
    id_column: Named = "id"
    """Column of ids."""
    vector_column: Named = "embedding"
    """Column of vectors."""


class QdrantCollection(Strict):
    """A collection of Qdrant at a URL, or in a local folder; `id_field` of the payload, "" = the point's id."""

    kind: Literal["qdrant"]
    url: Named
    """Of the server, or a local folder."""
    collection: Named
    """Its name."""
    key_variable: str = ""
    """Variable of the environment that holds the key; "" = none."""
    id_field: str = ""
    """Of the payload; "" = the point's id."""
    vector: str = ""
    """Its name, where points have several."""


class MilvusCollection(Strict):
    """A collection of Milvus at a URI, or in a file of Milvus Lite."""

    kind: Literal["milvus"]
    uri: Named
    """Of the server, or a file."""
    collection: Named
    """Its name."""
    token_variable: str = ""
    """Variable of the environment that holds the token; "" = none."""
    id_field: Named = "id"
    """Field of ids."""
    vector_field: Named = "vector"
    """Field of vectors."""


VectorSource = Annotated[VectorFiles | PgvectorTable | QdrantCollection | MilvusCollection, Field(discriminator="kind")]
