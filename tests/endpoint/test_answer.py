"""An answer with status 200 is vectors, may be had by asking again, or ends the stage at once with what came."""

import base64
import json
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from slimtower.common.errors import TransientError, UserError
from steps.endpoint import client as endpoint_client
from steps.endpoint.answer import MalformedAnswer, TransientAnswer, read_answer, tokens_of, vectors_of
from steps.endpoint.client import Batch, Client, TokenLedger
from steps.endpoint.params import Connection

KEY = "sk-planted-key-0123456789"
VECTORS = [[0.5, 1.0], [0.25, -1.0]]


def answer(change: Callable[[list[dict[str, Any]]], Any] = lambda rows: rows, **fields: Any) -> bytes:
    rows = [{"index": at, "embedding": list(vector)} for at, vector in enumerate(VECTORS)]
    return json.dumps({"data": change(rows), "usage": {"total_tokens": 7}} | fields).encode()


def replace_in_rows(name: str, value: Callable[[Any], Any]) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda rows: [row | {name: value(row[name])} for row in rows]


def first(value: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda rows: [rows[0] | {"embedding": value}, *rows[1:]]


MALFORMED = {
    "html": b"<html>login</html>",
    "list": b"[]",
    "error": b'{"error": {"message": "No providers available", "code": 404}}',
    "no data": b'{"object": "list"}',
    "fewer": answer(lambda rows: rows[:1]),
    "more": answer(lambda rows: [*rows, rows[0]]),
    "rows of null": answer(lambda rows: [None, None]),
    "no index": answer(lambda rows: [{"embedding": row["embedding"]} for row in rows]),
    "all index 0": answer(replace_in_rows("index", lambda at: 0)),
    "no embedding": answer(lambda rows: [{"index": row["index"]} for row in rows]),
    "null embedding": answer(first(None)),
    "nulls": answer(first([None, None])),
    "NaN": answer(first([float("nan"), 1.0])),
    "infinite": answer(first([1e300, 1.0])),
    "zeros": answer(first([0.0, 0.0])),
    "empty": answer(replace_in_rows("embedding", lambda vector: [])),
    "ragged": answer(first([1.0])),
    "nested": answer(replace_in_rows("embedding", lambda vector: [vector])),
    "no base64": answer(replace_in_rows("embedding", lambda vector: "?")),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_whole_answer_of_another_kind_is_malformed(content: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        vectors_of(read_answer(content), 2)


@pytest.mark.parametrize("content", [answer()[:-9], b'{"error": {"code": 429}}', b'{"error": {"code": 503}}'])
def test_a_torn_answer_and_a_busy_server_pass(content: bytes) -> None:
    with pytest.raises(TransientAnswer) as raised:
        read_answer(content)
    assert raised.value.billed is (b"error" not in content)


@pytest.mark.parametrize(
    "content",
    [
        answer(),
        answer(lambda rows: rows[::-1]),
        answer(replace_in_rows("index", float)),
        answer(replace_in_rows("index", str)),
        answer(replace_in_rows("embedding", lambda vector: base64.b64encode(struct.pack("<2f", *vector)).decode())),
        answer(error=None),
    ],
)
def test_vectors_are_in_the_order_of_the_texts(content: bytes) -> None:
    np.testing.assert_array_equal(vectors_of(read_answer(content), 2), np.array(VECTORS, dtype=np.float32))


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [({"total_tokens": 7}, 7), ({"total_tokens": "7"}, 7), (None, 0), ({}, 0), ({"total_tokens": None}, 0)],
)
def test_usage_may_be_missing(usage: Any, tokens: int) -> None:
    assert tokens_of(json.loads(answer(usage=usage))) == tokens


class _Handler(BaseHTTPRequestHandler):
    content: ClassVar[bytes] = b""
    requests: ClassVar[int] = 0

    def do_POST(self) -> None:
        type(self).requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.content.startswith(b"<") else "application/json")
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _Handler.requests = 0
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("content", "error", "requests"),
    [
        (f"<html>login {KEY}</html>".encode() + b"x" * 5000, UserError, 1),
        (MALFORMED["zeros"], UserError, 1),
        (MALFORMED["no index"], UserError, 1),
        (answer()[:-9], TransientError, 3),
    ],
)
def test_only_what_may_pass_is_asked_for_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, error: type[UserError], requests: int
) -> None:
    monkeypatch.setattr(endpoint_client, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setattr(_Handler, "content", content)
    connection = Connection(base_url=url, key_variable="PLANTED_KEY", tries=3, max_tokens_total=0)
    client = Client("tiny", 0, {}, connection, TokenLedger(tmp_path / "spent.txt"))
    with pytest.raises(error) as raised:
        list(client.answers([Batch([b"1", b"2"], ["a", "b"], 4)]))
    assert type(raised.value) is error and _Handler.requests == requests
    assert content[:5].decode() in str(raised.value) and len(str(raised.value)) < 700
    assert KEY not in str(raised.value)
