"""The ASGI application: routes, limits, /health and /metrics, and what starts and stops with a process."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from starlette.types import ASGIApp

from slimtower.common.errors import UserError, line
from slimtower.service.limits import Limits
from slimtower.service.logs import LOGGER
from slimtower.service.messages import HANDLERS
from slimtower.service.metrics import Observing
from slimtower.service.page import page_routes
from slimtower.service.routes import embedding_routes, search_routes
from slimtower.service.search_log import write_corpus
from slimtower.service.service import Service, open_service
from slimtower.service.settings import Settings

OPEN_S = 30.0  # so long may loading take before the port opens without a release
_ABOUT = "Search with released students: an encoder and its index answer together, and each answer names its release."


def build_app(service: Service) -> ASGIApp:
    """The application of one process."""
    api = FastAPI(
        title="slimtower",
        version="1",
        description=_ABOUT,
        docs_url=None,  # theirs load scripts from elsewhere
        redoc_url=None,
        exception_handlers=HANDLERS,
        lifespan=lambda _: _running(service),
    )
    app = Observing(Limits(api, service.settings, service.metrics), service.metrics)
    api.include_router(search_routes(service))
    api.include_router(embedding_routes(service))
    api.include_router(status_routes(service, lambda: app.in_flight))
    api.include_router(page_routes(api, service))
    return app


def from_environment() -> ASGIApp:
    """The application of one of several processes, whose settings the parent left."""
    return build_app(open_service(Settings.from_environment()))


@asynccontextmanager
async def _running(service: Service) -> AsyncIterator[None]:
    """From loading the release, or beginning to, to writing what is left of the log."""
    service.watcher.swapped = lambda: _after_swap(service)
    if service.watcher.current:  # loaded by the command, which tells of a wrong folder at once
        await asyncio.to_thread(_after_swap, service)
    await asyncio.to_thread(service.watcher.start, OPEN_S)
    if service.log:
        service.log.start()
    yield
    service.watcher.stop()
    if service.log:
        await asyncio.to_thread(service.log.close)
    service.pool.shutdown(wait=False, cancel_futures=True)
    LOGGER.info("stopped")


def _after_swap(service: Service) -> None:
    service.warm()
    _new_corpus(service)


def _new_corpus(service: Service) -> None:
    """What a new release was made of may be a new corpus: find it, and write it beside the log, later if not now."""
    if service.log:
        service.log.write_beside(lambda: _write_corpus(service))
        return
    try:
        service.corpus.locate()
    except (UserError, OSError) as error:
        LOGGER.error("corpus not read", extra={"data": {"error": line(error)}})


def _write_corpus(service: Service) -> None:
    students = service.watcher.current.students.values() if service.watcher.current else []
    datasets = sorted({dataset for served in students for dataset in served.release.datasets})
    service.corpus.locate()
    if service.log:
        write_corpus(service.log.store, service.corpus, datasets)


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


def gauges(service: Service, in_flight: int) -> list[Metric]:
    """What holds now."""
    students = service.watcher.current.students.values() if service.watcher.current else ()
    info = GaugeMetricFamily("slimtower_release_info", "Releases that answer now.")
    for served in students:
        info.add_sample(info.name, {"system": served.name, **served.identity}, 1)
    failing = len(service.watcher.failures)
    return [
        GaugeMetricFamily("slimtower_ready", "Whether there is a release that answers.", bool(students)),
        GaugeMetricFamily("slimtower_requests_in_flight", "Requests being answered by this process.", in_flight),
        GaugeMetricFamily("slimtower_load_failing", "Releases, or their source, that cannot be loaded now.", failing),
        info,
    ]
