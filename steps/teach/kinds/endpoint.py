"""The kind `endpoint`."""

from typing import ClassVar, Literal

from pydantic import Field

from steps.core.params import Capability, ModelName
from steps.endpoint.params import Connection, Reads
from steps.teach.kinds.base import Teacher


class Endpoint(Teacher):
    """A model behind an API: a server that answers `POST /v1/embeddings`. It is asked, never trained."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"vectors", "scores"})

    kind: Literal["endpoint"]
    model: str = Field(min_length=1)
    """Its name at the server."""
    dimensions: int = Field(default=0, ge=0)
    """Dimensions to ask for; 0 = as many as the model has."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """dot takes the vectors as they come."""
    tokenizer: ModelName = Field(default="all-MiniLM-L6-v2", min_length=1)
    """A name or folder. It counts the tokens of texts, and its words are those of a static student."""
    query: Reads
    """How a query is sent."""
    document: Reads
    """How a document is sent."""
    connection: Connection
    """The server and its limits, which change no vector."""
