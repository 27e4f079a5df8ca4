"""A small S3 server that misbehaves when it is told to: what boto, s3fs and the project ask of one, path style."""

import hashlib
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_XML = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_REFUSALS = {
    "500": (500, "InternalError", "as it was told to"),
    "503": (503, "SlowDown", "as it was told to"),
    "skew": (403, "RequestTimeTooSkewed", "The difference between the request time and the server's"),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
}


class FaultyS3(ThreadingHTTPServer):
    """Objects by `bucket/key`; `faults` are taken one by one by the requests that they match."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.faults: list[tuple[str, re.Pattern[str], int]] = []
        self.asked: list[str] = []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def misbehave(self, fault: str, request: str, times: int) -> None:
        """`fault` is of the next so many requests whose `METHOD path` matches: hang, slow, half or one of _REFUSALS."""
        self.faults.append((fault, re.compile(request), times))

    def fault_of(self, request: str) -> str:
        """The fault that is due, if any."""
        with self.lock:
            self.asked.append(request)
            for number, (fault, pattern, times) in enumerate(self.faults):
                if times and pattern.search(request):
                    self.faults[number] = (fault, pattern, times - 1)
                    return fault
        return ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyS3

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts, key = self._parsed_path()
        if self._failed():
            return
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if "list-type" in query or "/" not in key.rstrip("/"):
            self._list(key.rstrip("/"), query)
        else:
            self._give(key)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        _, key = self._parsed_path()
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            content = _unchunked(content)
        if self._failed():
            return
        if self.headers.get("If-None-Match") == "*" and key in self.server.objects:
            self._refuse(412, "PreconditionFailed")
            return
        self.server.objects[key] = content
        self._answer(200, b"", {"ETag": _etag(content)})

    def do_DELETE(self) -> None:
        _, key = self._parsed_path()
        if not self._failed():
            self.server.objects.pop(key, None)
            self._answer(204, b"")

    def _parsed_path(self) -> tuple[Any, str]:
        parts = urlsplit(self.path)
        return parts, unquote(parts.path).lstrip("/")

    def _failed(self) -> bool:
        """Misbehave, if that is due; tells whether the request is done with."""
        self._fault = self.server.fault_of(f"{self.command} {unquote(self.path)}")
        if self._fault == "hang":
            time.sleep(3)  # longer than the client of a test waits
            self.close_connection = True
        elif self._fault in _REFUSALS:
            self._refuse(*_REFUSALS[self._fault])
        return self._fault not in ("", "slow", "half")

    def _give(self, key: str) -> None:
        content = self.server.objects.get(key)
        if content is None:
            self._refuse(404, "NoSuchKey")
        elif self.headers.get("If-Match", _etag(content)) != _etag(content):
            self._refuse(412, "PreconditionFailed")
        elif byte_range := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(byte_range[1]), min(int(byte_range[2] or len(content)), len(content) - 1)
            headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}", "ETag": _etag(content)}
            self._answer(206, content[first : last + 1], headers)
        else:
            self._answer(200, content, {"ETag": _etag(content), "Last-Modified": _DATE})

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names = sorted(name.removeprefix(f"{bucket}/") for name in self.server.objects if name.startswith(f"{bucket}/"))
        entries, folders = "", set()
        for name in names[: int(query.get("max-keys", 1000))] if not prefix else names:
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in (rest := name.removeprefix(prefix)):
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            content = self.server.objects[f"{bucket}/{name}"]
            entries += (
                f"<Contents><Key>{escape(name)}</Key><Size>{len(content)}</Size><ETag>{_etag(content)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        for folder in sorted(folders):
            entries += f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        head = f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
        body = f"<ListBucketResult {_XML}>{head}{entries}</ListBucketResult>"
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _refuse(self, status: int, code: str, message: str = "as it was told to") -> None:
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._answer(status, body.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._fault == "half":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif self._fault == "slow":
            for start in range(0, len(content), 1 + len(content) // 4):
                self.wfile.write(content[start : start + 1 + len(content) // 4])
                self.wfile.flush()
                time.sleep(0.1)
        else:
            self.wfile.write(content)


def _unchunked(content: bytes) -> bytes:
    """The payload of an aws-chunked body: chunks with their sizes in hexadecimal, then checksums."""
    payload = b""
    while content:
        head, _, content = content.partition(b"\r\n")
        size = int(head.split(b";")[0] or b"0", 16)
        if not size:
            break
        payload, content = payload + content[:size], content[size + 2 :]
    return payload


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'
