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
    """One service. A field with a description is an option of the command line; `release` or `model` is empty."""

    release: str = Field(
        "", description="folder of a release or of several (models/release where --model is not given)"
    )
    model: str = Field("", description="a registered model's alias, such as slimtower@champion")
    system: str = Field("", description="which release of several answers by default (the evaluation's choice)")
    embeddings_model: str = Field("", description="another name of that one in /v1/embeddings, such as your provider's")
    hosts: list[str] = Field(default_factory=list)
    workers: _Count = Field(1, description="processes; they share the index's memory")
    threads: Annotated[int, Field(ge=0)] = Field(
        0, description="encodings and searches at once in each process (0: one a processor)"
    )
    poll_s: _Seconds = Field(10.0, description="seconds between two looks for a new release")
    rate: Annotated[float, Field(ge=0)] = Field(
        50.0,
        description="requests a second of one client to one process; ten queries of a batch count as one (0: no limit)",
    )
    max_requests: _Count = Field(
        200, description="requests at once in each process; where there is a rate, a quarter of them of one client"
    )
    max_body: _Count = Field(1 << 20, description="bytes of a request's body")
    max_batch: _Count = Field(256, description="queries of a request")
    max_text: _Count = Field(8192, description="characters of a query")
    max_k: _Count = Field(100, description="hits of a query")
    corpus: str = Field(
        "",
        description="folder or s3://bucket/prefix that holds corpus.parquet, as data/ingest does (what lies beside the"
        " releases of a checkout)",
    )
    corpus_mb: Annotated[int, Field(ge=0)] = Field(
        500, description="largest corpus.parquet read for snippets and BM25 (0: none)"
    )
    baselines: bool = Field(
        True,
        description="none of what the page compares with or shows of the run: teacher, BM25, report, example queries of"
        " the run's own data",
    )
    log: str = Field("", description="folder or s3://bucket/prefix of the search log (UBI); none where it is not given")
    log_flush_s: _Seconds = Field(60.0, description="seconds between two files of the search log")
    consent: Literal["header", "given"] = Field(
        "header",
        description="header: log searches that say X-Search-Consent: yes; given: log all, you have asked",
    )
    retention_days: _Count = Field(90, description="days that the search log is kept")
    log_queries: bool = Field(False, description="put queries into the service's own log lines")
    salt: str  # of the search log's hashes; secret, never printed

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
        return cls.model_validate(json.loads(os.environ[VARIABLE]) | {"salt": os.environ[SALT]})
