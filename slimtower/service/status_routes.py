"""How the service is: /health for probes and people, /metrics for Prometheus."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from slimtower.service.service import Service

_TOLD_S = 1.0  # so long what was told of the metrics holds: who asks more often computes nothing


def status_routes(service: Service, in_flight: Callable[[], int]) -> APIRouter:
    """The routes of one process; `in_flight` tells how many requests it is answering."""
    routes = APIRouter(tags=["status"])
    cached, telling = (-math.inf, ""), asyncio.Lock()  # when, and what, of the metrics

    @routes.get("/health/live")
    async def live() -> dict[str, bool]:
        """The process answers."""
        return {"live": True}

    @routes.get("/health")
    async def health() -> Response:
        """200 where a release answers, else 503; which release, since when, and of what kind the trouble is."""
        current = service.watcher.current
        state: dict[str, Any] = {
            "live": True,
            "ready": current is not None,
            "default": current.default if current else None,
            "releases": [
                {"system": served.name, **served.identity, "since": served.since, "source": served.origin.source}
                for served in (current.students.values() if current else [])
            ],
            "failing": [
                {"system": name, "kind": failure.kind, "since": failure.since, "tries": failure.tries}
                for name, failure in list(service.watcher.failures.items())
            ],
        }
        return JSONResponse(state, 200 if current else 503)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counts and times of all processes of the service; gauges of the one that answers."""
        nonlocal cached
        async with telling:
            if time.monotonic() - cached[0] > _TOLD_S:
                text = await asyncio.to_thread(lambda: service.metrics.text(gauges(service, in_flight())))
                cached = time.monotonic(), text
        return PlainTextResponse(cached[1], media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def gauges(service: Service, in_flight: int) -> Iterator[tuple[str, dict[str, str], float]]:
    """What holds now, in order of names."""
    current = service.watcher.current
    yield "slimtower_ready", {}, float(current is not None)
    yield "slimtower_requests_in_flight", {}, in_flight
    yield "slimtower_load_failing", {}, len(service.watcher.failures)
    for served in current.students.values() if current else []:
        yield "slimtower_release_info", {"system": served.name, **served.identity}, 1
