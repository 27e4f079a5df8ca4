"""The ASGI application: routes, limits, and what starts and stops with a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from slimtower.common.errors import UserError, line
from slimtower.service.embedding_routes import embedding_routes
from slimtower.service.limits import Limits
from slimtower.service.logs import LOGGER
from slimtower.service.observing import Observing
from slimtower.service.page import page_routes
from slimtower.service.problems import HANDLERS
from slimtower.service.search_log import write_corpus
from slimtower.service.search_routes import search_routes
from slimtower.service.service import Service, open_service
from slimtower.service.settings import Settings
from slimtower.service.status_routes import status_routes

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
