"""How a service runs: read from the command line once, handed to its processes as JSON."""

import json
import os
from typing import Annotated, Literal, Self

from pydantic import Field

from slimtower.common.settings import Strict
from slimtower.service.messages import K

VARIABLE = "SLIMTOWER_SERVE"  # holds the settings of worker processes, but for the salt
SALT = "SLIMTOWER_LOG_SALT"  # a name whose value is masked wherever it shows
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]


class Settings(Strict):
    """One service. `release` or `model` is empty; `salt` is secret and never printed."""

    release: str
    """Folder of a release, or of several."""
    model: str
    """A registered model and its alias, NAME@alias."""
    system: str
    """Which system answers where a request names none; empty: the evaluation's choice, else the first."""
    embeddings_model: str
    """Another name of the default student in /v1/embeddings: what applications call their provider's model."""
    hosts: list[str] = Field(default_factory=list)
    """Names, as in the Host of a request, that are answered; empty: any."""
    poll_s: _Seconds
    threads: _Count
    """Encodings and searches at once, in each process."""
    workers: _Count
    max_body: _Count
    """Bytes of a request's body."""
    max_batch: _Count
    max_text: _Count
    """Characters of a query."""
    max_k: _Count
    rate: Annotated[float, Field(ge=0)]
    """Requests a second of one client to one process, twice as many at once; a batch is several. 0: no limit."""
    max_requests: _Count
    """Requests at once, in each process; where there is a rate, one client may have a quarter of them."""
    corpus: str
    """Folder or s3://bucket/prefix of corpus.parquet; empty: what lies beside the releases of a checkout."""
    corpus_mb: Annotated[int, Field(ge=0)]
    """Size up to which the corpus is read: snippets and BM25."""
    baselines: bool
    """Whether teacher and BM25 may answer where their files are there."""
    log: str
    """Folder or s3://bucket/prefix of the search log; empty: none."""
    log_queries: bool
    """Whether the service's own log lines hold queries."""
    log_flush_s: _Seconds
    consent: Literal["header", "given"]
    """`header`: log only searches whose request says so; `given`: all, the operator has asked."""
    retention_days: _Count
    salt: str

    @property
    def max_hits(self) -> int:
        """Hits of all queries of a request: a whole batch has K of each."""
        return max(self.max_batch * K, self.max_k)

    def to_environment(self) -> None:
        """Leave the settings to child processes."""
        os.environ[VARIABLE] = self.model_dump_json(exclude={"salt"})
        os.environ[SALT] = self.salt

    @classmethod
    def from_environment(cls) -> Self:
        """What the parent process left."""
        return cls.model_validate(json.loads(os.environ[VARIABLE]) | {"salt": os.environ[SALT]})
