"""An S3 server for the tests of sources."""

from collections.abc import Callable, Iterator

import pytest
from faulty_s3 import FaultyS3

from slimtower.common import s3


@pytest.fixture
def s3_server(monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]) -> Iterator[FaultyS3]:
    """The server that the environment names, asked with little patience."""
    server = FaultyS3()
    environment = {
        "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "2",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3, "_READ_SECONDS", 1.0)
    monkeypatch.setattr(s3, "_WAITS", (0.01, 0.02))
    yield server
    record_property("requests", len(server.asked))
    server.shutdown()
    server.server_close()
