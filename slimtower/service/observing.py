"""Outermost: each request's number, time, count and log line, and headers that every answer carries."""

import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slimtower.service.logs import LOGGER
from slimtower.service.metrics import Metrics

SEEN = "slimtower.seen"  # of a scope: what routes say about a request, for its log line
PATHS = {
    "/", "/docs", "/document", "/events", "/health", "/health/live", "/metrics", "/openapi.json", "/report", "/search",
    "/systems", "/v1/embeddings", "/v1/models",
}  # fmt: skip
_QUIET = ("/health", "/metrics")  # asked every few seconds: counted, not logged


class Observing:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics, self.in_flight = app, metrics, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and note."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, number, status = time.perf_counter(), uuid.uuid4().hex[:16], 0
        scope[SEEN] = {}

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = number
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
            await send(message)

        self.in_flight += 1
        try:
            await self.app(scope, receive, noting)
        except Exception:
            if not status:  # else it was answered with 500, and logged
                raise
        finally:
            self.in_flight -= 1
            self._note(scope, number, status, time.perf_counter() - began)

    def _note(self, scope: Scope, number: str, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in PATHS else "other"
        self.metrics.count("slimtower_requests_total", path=path, status=str(status or 499))
        self.metrics.time("slimtower_request_seconds", seconds, path=path)
        if status < 400 and path.startswith(_QUIET):
            return
        row = {"request": number, "method": scope["method"], "path": path, "status": status or 499}  # 499: client left
        LOGGER.info("request", extra={"data": row | {"ms": round(seconds * 1000, 3)} | scope[SEEN]})
