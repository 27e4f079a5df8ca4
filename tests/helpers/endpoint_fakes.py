"""A teacher behind the embedding server, in tests."""

from pathlib import Path
from typing import Any

from embedding_server import EmbeddingServer

from steps.teach import endpoint
from steps.teach.kinds.base import Inputs
from steps.teach.kinds.endpoint import Endpoint as EndpointParams
from steps.tracking.runs import NullRun

CONNECTION: dict[str, Any] = {
    "base_url": "set by the test", "key_variable": "PLANTED_KEY", "timeout_s": 5.0, "tries": 4, "batch_texts": 8,
    "concurrency": 3, "requests_per_minute": 0, "tokens_per_minute": 0, "max_tokens_total": 0,
    "price": 0.02,
}  # fmt: skip


def endpoint_params(url: str, connection: dict[str, Any] | None = None, **changes: Any) -> EndpointParams:
    """A teacher with the tiny tower's name and no prompts."""
    reads = {"prompt": "", "body": {}, "max_length": 64}
    described = {
        "kind": "endpoint",
        "model": "tiny",
        "dimensions": 0,
        "similarity": "cosine",
        "tokenizer": "all-MiniLM-L6-v2",
        "query": reads,
        "document": reads,
        "connection": CONNECTION | {"base_url": url} | (connection or {}),
    }
    return EndpointParams.model_validate(described | changes)


def teach(output: Path, server: EmbeddingServer, connection: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write the teacher; returns its tower."""
    params = endpoint_params(server.url, connection, **changes)
    endpoint.teach(Inputs(output, output, output), output, params, NullRun())
    return output / "tower"
