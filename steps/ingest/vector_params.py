"""Where the vectors of an index lie that is there already: `ingest.document_vectors`."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from slimtower.common.settings import Strict, Variable


def _without_login(address: str) -> str:
    if "://" in address and re.search("[@?]", address):
        raise ValueError(
            "no login and no query may be in it, as it is written down; name the variable of the environment that holds"
            " the key in key_variable (Milvus: token_variable)"
        )
    return address


Named = Annotated[str, Field(min_length=1)]
Address = Annotated[str, Field(min_length=1), AfterValidator(_without_login)]


class VectorFiles(Strict):
    """Parquet with a column of ids and one of vectors, or .npy `(n, dim)` with a text file of ids."""

    kind: Literal["files"]
    path: Named
    """File or folder, local or on s3://; several .npy count in the order of their names."""
    ids: str = ""
    """Text file of one id a line, in the order of the rows of the .npy; "" for Parquet."""
    id_column: Named = "id"
    """Column of ids."""
    vector_column: Named = "vector"
    """Column of vectors."""


class PgvectorTable(Strict):
    """A table of Postgres with pgvector."""

    kind: Literal["pgvector"]
    url_variable: Annotated[Variable, Field(min_length=1)]
    """Variable of the environment that holds the address, postgresql://..."""
    table: Named
    """Name of the table."""
    id_column: Named = "id"
    """Column of ids."""
    vector_column: Named = "embedding"
    """Column of vectors."""


class QdrantCollection(Strict):
    """A collection of Qdrant at a URL, or in a local folder."""

    kind: Literal["qdrant"]
    url: Address
    """Address of the server, without a login, or a local folder."""
    collection: Named
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
    collection: Named
    """Name of the collection."""
    token_variable: Variable = ""
    """Variable of the environment that holds the token; "" = none."""
    id_field: Named = "id"
    """Field of ids."""
    vector_field: Named = "vector"
    """Field of vectors."""


VectorSource = Annotated[VectorFiles | PgvectorTable | QdrantCollection | MilvusCollection, Field(discriminator="kind")]
