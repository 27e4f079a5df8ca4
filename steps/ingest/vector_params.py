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
    ids: str = ""
    id_column: Named = "id"
    vector_column: Named = "vector"


class PgvectorTable(Strict):
    """A table of Postgres with pgvector; `url_variable` of the environment holds postgresql://..."""

    kind: Literal["pgvector"]
    url_variable: Named
    table: Named
    id_column: Named = "id"
    vector_column: Named = "embedding"


class QdrantCollection(Strict):
    """A collection of Qdrant at a URL, or in a local folder; `id_field` of the payload, "" = the point's id."""

    kind: Literal["qdrant"]
    url: Named
    collection: Named
    key_variable: str = ""
    id_field: str = ""
    vector: str = ""  # its name, where points have several


class MilvusCollection(Strict):
    """A collection of Milvus at a URI, or in a file of Milvus Lite."""

    kind: Literal["milvus"]
    uri: Named
    collection: Named
    token_variable: str = ""
    id_field: Named = "id"
    vector_field: Named = "vector"


VectorSource = Annotated[VectorFiles | PgvectorTable | QdrantCollection | MilvusCollection, Field(discriminator="kind")]
