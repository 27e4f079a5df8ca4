"""The kind `endpoint`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from steps.core.endpoint_params import Connection, Reads
from steps.core.tracking import Run
from steps.teach.kinds.base import Teacher


class Endpoint(Teacher):
    """A model behind an API: a server that answers `POST /v1/embeddings`. It is asked, never trained."""

    kind: Literal["endpoint"]
    model: str = Field(min_length=1)
    dimensions: int = Field(ge=0)
    similarity: Literal["cosine", "dot"]
    tokenizer: str = Field(min_length=1)
    query: Reads
    document: Reads
    connection: Connection

    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Ask for the probes that it is known by, and write what it is."""
        from steps.teach.endpoint import teach_endpoint

        teach_endpoint(output, self, run)
