"""What a client gets that asks for too much, too often, or keeps a connection waiting."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from serve_fakes import settings
from serve_process import free_port, until
from starlette.responses import PlainTextResponse

from slimtower.service import limits
from slimtower.service.limits import CHARGE, Buckets, Connection, Limits, charge, client_of
from slimtower.service.telemetry import Metrics


def test_a_bucket_gives_its_size_at_once_then_its_rate() -> None:
    clock = [0.0]
    buckets = Buckets(2.0, lambda: clock[0])
    assert [buckets.wait_s("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert buckets.wait_s("b") == 0
    clock[0] = 0.25
    assert buckets.wait_s("a") == 0.25
    clock[0] = 0.5
    assert buckets.wait_s("a") == 0
    clock[0] = 1000.0
    assert [buckets.wait_s("a") > 0 for _ in range(5)] == [False] * 4 + [True]


def test_a_batch_is_waited_for_by_what_follows_it() -> None:
    clock = [0.0]
    buckets = Buckets(2.0, lambda: clock[0])
    assert buckets.wait_s("a") == 0
    for queries, k in ((1, 100), (10, 10), (10, 1)):  # of one request's size
        charge({CHARGE: partial(buckets.charge, "a")}, queries, k)
    assert [buckets.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    charge({CHARGE: partial(buckets.charge, "a")}, 20, 100)
    assert buckets.wait_s("a") == 10.0  # 1 to have, 19 that are owed
    clock[0] = 10.0
    assert buckets.wait_s("a") == 0
    charge({}, 1000)  # of a process without limits


def test_clients_of_one_ipv6_network_are_one() -> None:
    hosts = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1", "10.0.0.1", "10.0.0.2", "testclient"]
    clients = [client_of({"client": (host, 1)}) for host in hosts]
    assert clients[0] == clients[1]
    assert len(set(clients)) == 5
    assert [client_of({"client": (host, 1)}) for host in ("::ffff:10.0.0.1", "::ffff:10.0.0.2")] == clients[3:5]


def scope(path: str = "/search", method: str = "POST") -> dict[str, Any]:
    return {"type": "http", "path": path, "method": method, "headers": [], "client": ("10.0.0.1", 1)}


def test_who_calls_the_service_by_another_name_is_not_answered() -> None:
    """A page of elsewhere may let its name mean this machine, and would then be of the service's own origin."""
    answered = PlainTextResponse("ok")
    local, any_of_them = (
        Limits(answered, settings(Path("release"), hosts=hosts), Metrics()) for hosts in (["localhost", "::1"], [])
    )
    for host, status in ((b"localhost:8000", 200), (b"[::1]:8000", 200), (b"evil.example:8000", 421)):
        for path in ("/search", "/health"):
            request = scope(path, "GET") | {
                "scheme": "http", "server": ("127.0.0.1", 8000), "query_string": b"", "headers": [(b"host", host)]
            }  # fmt: skip
            assert asyncio.run(ask(local, request))[0] == status
            assert asyncio.run(ask(any_of_them, request))[0] == 200


async def ask(limits: Limits, request: dict[str, Any]) -> tuple[int, dict[bytes, bytes]]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await limits(request, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


class Slow:
    """An application that answers when it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


def test_requests_above_what_a_process_takes_at_once_are_told_to_come_again() -> None:
    async def check() -> None:
        slow = Slow()
        limits = Limits(slow, settings(Path("x"), max_requests=8, rate=100.0), Metrics())
        clients = [scope() | {"client": (f"10.0.0.{number}", 1)} for number in range(5)]
        running = [asyncio.create_task(ask(limits, request)) for request in clients[:4] * 2]
        await asyncio.sleep(0)
        status, headers = await ask(limits, clients[4])
        assert (status, headers[b"retry-after"]) == (503, b"1")
        for request in (scope("/health"), scope("/healthy", "GET")):  # no probe has a body, or a path of its own
            assert (await ask(limits, request))[0] == 503
        probe = asyncio.create_task(ask(limits, scope("/health", "GET")))
        await asyncio.sleep(0)
        slow.release.set()
        assert [(await task)[0] for task in [*running, probe]] == [200] * 9
        slow.release.clear()
        same_client = [
            asyncio.create_task(ask(limits, clients[0])) for _ in range(2)
        ]  # a quarter of them for each client
        await asyncio.sleep(0)
        status, headers = await ask(limits, clients[0])
        assert (status, headers[b"retry-after"]) == (429, b"1")
        other_client = asyncio.create_task(ask(limits, clients[1]))
        await asyncio.sleep(0)
        slow.release.set()
        assert [(await task)[0] for task in [*same_client, other_client]] == [200, 200, 200]
        assert (limits.running, limits.running_of) == (0, {})

    asyncio.run(check())


def test_an_answer_counts_until_the_client_has_taken_it() -> None:
    async def check() -> None:
        received, sent = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("large")(scope, receive, send)

        async def send(message: Any) -> None:  # as uvicorn's: it waits for what was written before
            if sent and sent[-1].get("body"):
                await received.wait()
            sent.append(message)

        limits = Limits(app, settings(Path("x")), Metrics())
        answering = asyncio.create_task(limits(scope(method="GET"), None, send))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert limits.running == 1
        received.set()
        await answering
        assert limits.running == 0
        assert [(part.get("body"), part.get("more_body")) for part in sent[1:]] == [(b"large", True), (b"", None)]

    asyncio.run(check())


COUNTING = """
from prometheus_client.metrics_core import GaugeMetricFamily
from slimtower.service.telemetry import Metrics
metrics = Metrics()
metrics.count("slimtower_queries_total", {number}, system='a"b')
metrics.time("slimtower_encode_seconds", 0.0003 * {number}, system="a")
print(metrics.text([GaugeMetricFamily("slimtower_ready", "Ready.", 1.0)]))
"""


@pytest.mark.medium
def test_processes_add_up_in_one_text_and_counts_outlive_a_process(tmp_path: Path) -> None:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", COUNTING.format(number=number)],
            env=environment, check=True, capture_output=True, text=True,
        ).stdout
        for number in (1, 2)
    ]  # fmt: skip
    assert 'slimtower_queries_total{system="a\\"b"} 1.0' in outputs[0]
    assert 'slimtower_queries_total{system="a\\"b"} 3.0' in outputs[1]
    assert 'slimtower_encode_seconds_bucket{le="0.0005",system="a"} 1.0' in outputs[1]
    assert 'slimtower_encode_seconds_bucket{le="0.001",system="a"} 2.0' in outputs[1]
    assert 'slimtower_encode_seconds_count{system="a"} 2.0' in outputs[1]
    assert outputs[1].count("# TYPE slimtower_encode_seconds histogram") == 1
    assert outputs[1].strip().endswith("slimtower_ready 1.0")


ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 32 << 20  # more than systems keep for a reader
ASK_LARGE = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % LARGE


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with as many bytes as the path says."""
    size = int(scope["path"][1:] or 0)
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * size})


@contextmanager
def opened(limit: int | None = None) -> Iterator[tuple[uvicorn.Server, int]]:
    config = uvicorn.Config(
        app, http=Connection, ws="none", limit_concurrency=limit, port=free_port(), lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server, config.port
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def cut(client: socket.socket) -> bool:
    """Whether the server closed the connection, after what it had sent."""
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.medium
@pytest.mark.parametrize("sent", [b"", b"GET / HT", ASK + b"GET / HT"], ids=["nothing", "half", "a second half"])
def test_half_a_request_holds_no_connection(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.3)
    with opened() as (_, port), connected(port) as client:
        for part in sent.partition(ASK)[1:] if sent.startswith(ASK) else [sent]:
            client.sendall(part)
            time.sleep(0.1)
        assert cut(client)


@pytest.mark.medium
def test_who_asks_again_in_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.2)
    with opened() as (_, port), connected(port) as client:
        for _ in range(4):
            client.sendall(ASK[:10])
            time.sleep(0.1)
            client.sendall(ASK[10:])
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            time.sleep(0.3)  # idle between two requests


@pytest.mark.medium
def test_answers_that_are_not_read_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TAKE_S", 0.3)
    with opened() as (server, port), connected(port) as client:
        client.sendall(ASK_LARGE * 2)
        until(lambda: server.server_state.tasks, seconds=10)
        until(lambda: not (server.server_state.tasks or server.server_state.connections), seconds=10)
        assert cut(client)
    with opened() as (_, port), connected(port) as client:  # what is read arrives whole
        client.sendall(ASK_LARGE.replace(b"x\r\n", b"x\r\nConnection: close\r\n"))
        size = 0
        while part := client.recv(1 << 20):
            size += len(part)
        assert size > LARGE


@pytest.mark.medium
def test_for_one_connection_too_many_the_longest_idle_is_cut_and_nobody_refused() -> None:
    with opened(limit=3) as (server, port):
        clients = []
        for number in range(5):
            clients.append(connected(port))
            until(lambda number=number: len(server.server_state.connections) == min(number + 1, 3), seconds=10)
            if number == 2:
                clients[0].sendall(ASK)  # not idle for so long
                assert clients[0].recv(1000).startswith(b"HTTP/1.1 200")
        assert cut(clients[1]) and cut(clients[2])
        for client in (clients[0], clients[3], clients[4]):
            client.sendall(ASK)
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            client.close()
