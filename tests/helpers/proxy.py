"""A proxy in front of a server, which a test lets answer by itself, or keep silent."""

import http.client
import http.server
import threading


class Proxy:
    """Passes requests on to a port of this machine, or answers each with `page`, a status and its HTML.

    Bodies larger than `limit` it refuses.
    """

    def __init__(self, port: int) -> None:
        self.page: tuple[int, str] | None = None
        self.limit = 2**30  # bytes
        self.speaks = threading.Event()  # cleared: nothing is answered
        self.speaks.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if not outer.speaks.is_set():
                    outer.speaks.wait()
                    return
                if outer.page:
                    self._answer(outer.page[0], "text/html", outer.page[1].encode())
                    return
                if len(body) > outer.limit:
                    self._answer(413, "text/html", b"<html>too large</html>")
                    return
                onward = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                onward.request(self.command, self.path, body, {**self.headers, "Host": f"127.0.0.1:{port}"})
                answer = onward.getresponse()
                self._answer(answer.status, answer.getheader("Content-Type") or "text/plain", answer.read())
                onward.close()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def _answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take it down."""
        self._server.shutdown()
        self._server.server_close()
