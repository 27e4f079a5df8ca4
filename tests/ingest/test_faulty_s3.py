"""A source and a run's store on an S3 server that misbehaves: tried again, with waits, then one line that says what."""

import os
import re
from pathlib import Path

import pytest
from faulty_s3 import FaultyS3

from pipeline.task.run_store import open_store
from slimtower.common.errors import EXIT_DATA, EXIT_TRANSIENT, UserError, line
from steps.ingest.locations import locate

pytestmark = [pytest.mark.medium, pytest.mark.faults("S3")]

CONTENT = os.urandom(40_000)
GET = r"^GET /shop/log/p1\.csv"
LIST = r"^GET /shop\?"


@pytest.fixture
def server(s3_server: FaultyS3) -> FaultyS3:
    s3_server.objects |= {f"shop/log/p{number}.csv": CONTENT[number:] for number in range(3)}
    return s3_server


def fetched() -> list[bytes]:
    files = locate("s3://shop/log", key="ingest.sources[0].path")
    return [file.path.read_bytes() for file in files]


@pytest.mark.parametrize(
    ("fault", "request_", "times"),
    [("hang", GET, 1), ("slow", GET, 9), ("half", GET, 2), ("500", GET, 1), ("503", LIST, 1), ("hang", LIST, 1)],
)
def test_a_server_that_recovers_is_asked_again(server: FaultyS3, fault: str, request_: str, times: int) -> None:
    server.misbehave(fault, request_, times)
    assert fetched() == [CONTENT, CONTENT[1:], CONTENT[2:]]
    assert fault == "slow" or sum(bool(re.search(request_, request)) for request in server.asked) > times


@pytest.mark.parametrize(
    ("fault", "request_", "code", "message", "max_requests"),
    [
        ("hang", GET, EXIT_TRANSIENT, "check AWS_ENDPOINT_URL and the network, then run again", 2),
        ("half", GET, EXIT_TRANSIENT, "check AWS_ENDPOINT_URL and the network, then run again", 3),
        ("500", GET, EXIT_TRANSIENT, "InternalError.*the server is busy, run again", 2),
        ("503", LIST, EXIT_TRANSIENT, "SlowDown.*the server is busy, run again", 2),
        ("skew", LIST, EXIT_DATA, "RequestTimeTooSkewed.*set the clock of this machine, or of the server", 2),
        ("expired", LIST, EXIT_DATA, "ExpiredToken.*check AWS_ACCESS_KEY_ID", 2),
    ],
)
def test_one_that_does_not_recover_is_named_in_one_line(
    server: FaultyS3, own_cache: Path, fault: str, request_: str, code: int, message: str, max_requests: int
) -> None:
    server.misbehave(fault, request_, 1000)
    with pytest.raises(UserError, match=rf"ingest\.sources\[0\]\.path: s3://shop/log.*{message}") as raised:
        fetched()
    assert raised.value.exit_code == code and "\n" not in line(raised.value)
    assert sum(bool(re.search(request_, request)) for request in server.asked) <= max_requests
    assert not list(own_cache.rglob("p1.csv"))  # nothing half under its name
    server.faults.clear()
    assert fetched() == [CONTENT, CONTENT[1:], CONTENT[2:]]


def test_a_store_of_a_run_reads_whole_answers_or_none(server: FaultyS3) -> None:
    store = open_store("s3://shop/project")
    store.write("runs/a/begin.json", CONTENT)
    server.misbehave("half", "^GET .*begin.json", 2)
    assert store.read("runs/a/begin.json") == CONTENT
    server.misbehave("half", "^GET .*begin.json", 100)
    with pytest.raises(UserError, match="SLIMTOWER_REMOTE: s3://shop/project: ") as raised:
        store.read("runs/a/begin.json")
    assert raised.value.exit_code == EXIT_TRANSIENT
    server.faults.clear()
    server.misbehave("500", "^PUT ", 1)
    store.write("runs/a/begin.json", b"new")
    assert store.read("runs/a/begin.json") == b"new" and store.names("runs/a") == ["begin.json"]
