"""The service's own log, one JSON object a line, and counts and times for Prometheus.

What people search for is not in the log unless asked for. The processes of one service add their counts up, by files
in a folder that they share. What a process that ended has counted stays: a counter never falls. Gauges are of the
process that answers.
"""

import json
import logging
import os
import time
import traceback
import uuid
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER = logging.getLogger("slimtower.serve")
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder; prometheus_client reads it when it is imported
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds
SEEN = "slimtower.seen"  # of a scope: what routes say about a request, for its log line
PATHS = {
    "/", "/docs", "/document", "/events", "/health", "/health/live", "/metrics", "/openapi.json", "/report", "/search",
    "/systems", "/v1/embeddings", "/v1/models",
}  # fmt: skip
HEADED = {"/", "/docs", "/report", "/health", "/health/live", "/metrics"}  # whose heads may be asked for alone
_QUIET = ("/health", "/metrics")  # asked every few seconds: counted, not logged
_COUNTERS = {
    "slimtower_requests_total": ("Requests answered, by path and status.", ("path", "status")),
    "slimtower_refused_total": ("Requests refused by a limit.", ("status",)),
    "slimtower_queries_total": ("Queries answered, by system.", ("system",)),
    "slimtower_swaps_total": ("Releases swapped in, in all processes.", ()),
    "slimtower_load_failures_total": ("Tries to poll or load that failed.", ()),
    "slimtower_logged_rows_total": ("Rows written to the search log.", ("kind",)),
    "slimtower_log_failures_total": ("Writes to the search log that failed, to be tried again.", ()),
    "slimtower_log_dropped_total": ("Rows of the search log that were lost.", ()),
}
_TIMES = {
    "slimtower_request_seconds": ("From the first byte of a request to the last of its answer.", ("path",)),
    "slimtower_encode_seconds": ("Encoding of a request's queries.", ("system",)),
    "slimtower_search_seconds": ("Search of a request's queries.", ("system",)),
}

disable_created_metrics()


class JsonLines(logging.Formatter):
    """A record as JSON: time, level, process, event, and the fields of its `data`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line. Of an exception its type and place are told, not its text, which may hold a query."""
        row: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "pid": record.process,
            "event": record.getMessage(),
        }
        row |= getattr(record, "data", {})
        if record.exc_info and record.exc_info[0]:
            row["exception"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            row["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames][-8:]
        return json.dumps(row, ensure_ascii=False, default=str)


class ShortLines(logging.Formatter):
    """A record as a person reads it at a terminal: what happened, and what the error says."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; of an exception its type alone, as its text may hold a query."""
        facts = getattr(record, "data", {})
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        parts = [record.getMessage(), *(str(facts[name]) for name in ("system", "error") if name in facts), kind]
        return f"serve: {': '.join(part for part in parts if part)}"


def log_config(*, terminal: bool = False) -> dict[str, Any]:
    """For logging.config.dictConfig, which uvicorn calls in every process; at a terminal warnings and errors alone."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {"()": "slimtower.service.telemetry.JsonLines"},
            "short": {"()": "slimtower.service.telemetry.ShortLines"},
        },
        "handlers": {
            "out": {
                "class": "logging.StreamHandler",
                "formatter": "short" if terminal else "json",
                "stream": "ext://sys.stdout",
            }
        },
        "loggers": {
            "slimtower": {"handlers": ["out"], "level": "WARNING" if terminal else "INFO", "propagate": False},
            "uvicorn": {"handlers": ["out"], "level": "WARNING", "propagate": False},
        },
    }


class Metrics:
    """Counters and histograms of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(name, text, labels, registry=self._registry) for name, (text, labels) in _COUNTERS.items()
        }
        self._times = {
            name: Histogram(name, text, labels, buckets=BUCKETS, registry=self._registry)
            for name, (text, labels) in _TIMES.items()
        }

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def time(self, name: str, seconds: float, **labels: str) -> None:
        self._times[name].labels(**labels).observe(seconds)

    def text(self, gauges: list[Metric]) -> str:
        """Counters and histograms of all processes, and the gauges given of this one; Prometheus' text format 0.0.4."""
        counted = self._registry
        if SHARED in os.environ:
            MultiProcessCollector(counted := CollectorRegistry())
        current = CollectorRegistry()
        current.register(_Gauges(gauges))
        return (generate_latest(counted) + generate_latest(current)).decode()


class _Gauges(Collector):
    def __init__(self, gauges: list[Metric]) -> None:
        self.gauges = gauges

    def collect(self) -> list[Metric]:
        return self.gauges


class Observing:
    """ASGI middleware, outermost: each request's number, time, count and log line, and headers of every answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics, self.in_flight = app, metrics, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD" and scope["path"] in HEADED
        inner = {**scope, "method": "GET"} if is_head else scope  # the server sends no body then
        began, number, status = time.perf_counter(), uuid.uuid4().hex[:16], 0
        scope[SEEN] = inner[SEEN] = {}

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
            await self.app(inner, receive, noting)
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
