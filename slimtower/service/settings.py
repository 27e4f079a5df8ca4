"""How a service runs: read from the command line once, handed to its processes as JSON."""

import json
import os
from typing import Annotated, Literal, Self

from pydantic import Field

from slimtower.common.settings import Strict

VARIABLE = "SLIMTOWER_SERVE"  # holds the settings of worker processes, but for the salt
SALT = "SLIMTOWER_LOG_SALT"  # a name whose value is masked wherever it shows
K = 10  # hits of a query, unless it asks for others
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]


class Settings(Strict):
    """One service, as the options of command.py say. `release` or `model` is empty; `salt` is secret, never printed."""

    release: str
    model: str
    system: str
    embeddings_model: str
    hosts: list[str] = Field(default_factory=list)
    poll_s: _Seconds
    threads: _Count
    workers: _Count
    max_body: _Count
    max_batch: _Count
    max_text: _Count
    max_k: _Count
    rate: Annotated[float, Field(ge=0)]
    max_requests: _Count
    corpus: str
    corpus_mb: Annotated[int, Field(ge=0)]
    baselines: bool
    log: str
    log_queries: bool
    log_flush_s: _Seconds
    consent: Literal["header", "given"]
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
