"""What a client that keeps a connection waiting gets: none."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from serve_process import free_port, until

from slimtower.service import connections
from slimtower.service.connections import Connection

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
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    with opened() as (_, port), connected(port) as client:
        for part in sent.partition(ASK)[1:] if sent.startswith(ASK) else [sent]:
            client.sendall(part)
            time.sleep(0.1)
        assert cut(client)


@pytest.mark.medium
def test_who_asks_again_in_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with opened() as (_, port), connected(port) as client:
        for _ in range(4):
            client.sendall(ASK[:10])
            time.sleep(0.1)
            client.sendall(ASK[10:])
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            time.sleep(0.3)  # idle between two requests


@pytest.mark.medium
def test_answers_that_are_not_read_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TAKE_S", 0.3)
    with opened() as (server, port), connected(port) as client:
        client.sendall(ASK_LARGE * 2)
        until(lambda: server.server_state.tasks, seconds=10)
        until(lambda: not (server.server_state.tasks or server.server_state.connections), seconds=10)
        assert cut(client)


@pytest.mark.medium
def test_a_large_answer_that_is_read_arrives_whole() -> None:
    with opened() as (_, port), connected(port) as client:
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
