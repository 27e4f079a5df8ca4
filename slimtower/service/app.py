"""The ASGI application: routes, limits, /health and /metrics, pages, and what starts and stops with a process."""

import asyncio
import base64
import hashlib
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from markupsafe import Markup, escape
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from starlette.types import ASGIApp

from slimtower.common.errors import UserError, line
from slimtower.service.limits import Limits
from slimtower.service.messages import HANDLERS, Problem
from slimtower.service.routes import embedding_routes, search_routes
from slimtower.service.search_log import write_corpus
from slimtower.service.service import Service, open_service
from slimtower.service.settings import Settings
from slimtower.service.telemetry import LOGGER, Observing

OPEN_S = 30.0  # so long may loading take before the port opens without a release
_ABOUT = "Search with released students: an encoder and its index answer together, and each answer names its release."
_TOLD_S = 1.0  # so long what was told of the metrics holds: who asks more often computes nothing
_HERE = Path(__file__).parent
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.S)
Row = tuple[str, str, str, str]


def build_app(service: Service) -> ASGIApp:
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
    for pool in (service.pool, service.baseline_pool):
        pool.shutdown(wait=False, cancel_futures=True)
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
    datasets = sorted({dataset for served in service.students for dataset in served.release.datasets})
    service.corpus.locate()
    if service.log:
        write_corpus(service.log.store, service.corpus, datasets)


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
    students = service.students
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


def page_routes(api: FastAPI, service: Service) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    api_page = cache(lambda: _reference(_HERE / "reference.html.j2", api.openapi()))

    @routes.get("/")
    async def search_page() -> Response:
        return _page((_HERE / "page.html").read_text(encoding="utf-8"))

    @routes.get("/docs")
    async def reference() -> Response:
        return _page(api_page())

    @routes.get("/report")
    async def report() -> Response:
        path = service.report
        if path is None:
            raise Problem(404, "no report here: the releases lie in no evaluated run, or --no-baselines was given")
        return _page(path.read_text(encoding="utf-8"), style="'unsafe-inline'")  # its tables have styles of their own

    return routes


def _page(html: str, style: str = "") -> Response:
    return HTMLResponse(html, headers={"Content-Security-Policy": policy(html, style), "Cache-Control": "no-cache"})


@lru_cache(maxsize=4)  # of the pages, whose text is the key; the report changes
def policy(html: str, style: str = "") -> str:
    """Content-Security-Policy of a page: its own script and style, requests to where it came from, nothing else."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(html):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
        digests[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(digests['script']) or repr('none')}",
            f"style-src {style or ' '.join(digests['style']) or repr('none')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _reference(template: Path, schema: dict[str, Any]) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["code"] = _with_code
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        info=schema["info"],
        paths=[
            (method.upper(), path, operation, _request(operation, schema), *_answer(operation, schema))
            for path, operations in schema["paths"].items()
            for method, operation in operations.items()
        ],
    )


def _with_code(text: str) -> Markup:
    """A description, in which backticks enclose code, as HTML."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if at % 2 else p for at, p in enumerate(parts))


def _request(operation: dict[str, Any], schema: dict[str, Any]) -> list[Row]:
    """Name, where, type and description of what a request gives."""
    rows = [
        (item["name"], item["in"], _type(item["schema"]), item.get("description", ""))
        for item in operation.get("parameters", [])
    ]
    body = _json_schema(operation.get("requestBody", {}))
    for name, field in _resolved(body, schema).get("properties", {}).items():
        rows.append((name, "body", _type(field), field.get("description", "")))
    return rows


def _answer(operation: dict[str, Any], schema: dict[str, Any]) -> tuple[list[Row], str]:
    """The fields of an answer, with those within them, and an example as JSON; both empty if it is no object."""
    done: dict[str, Any] = next((answer for code, answer in operation["responses"].items() if code.startswith("2")), {})
    answer = _resolved(_json_schema(done), schema)
    example = json.dumps(answer["examples"][0], indent=2, ensure_ascii=False) if "examples" in answer else ""
    return list(_inner(answer, schema, "")), example


def _inner(part: dict[str, Any], schema: dict[str, Any], prefix: str) -> Iterator[Row]:
    for name, field in part.get("properties", {}).items():
        yield f"{prefix}{name}", "answer", _type(field), field.get("description", "")
        options = [field, *field.get("anyOf", [])]
        items = [("[].", option["items"]) for option in options if option.get("type") == "array"]
        for joint, inner in [(".", option) for option in options] + items:
            yield from _inner(_resolved(inner, schema) if "$ref" in inner else {}, schema, f"{prefix}{name}{joint}")


def _json_schema(content: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = content.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def _resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    target: dict[str, Any] = schema["components"]["schemas"][name] if name else part
    return target


def _type(field: dict[str, Any]) -> str:
    kinds = [_type(option) for option in field.get("anyOf", [])] or [" or ".join(map(str, field.get("enum", [])))]
    name = str(field.get("const", field.get("type", "object" if "$ref" in field else "")))
    text = " or ".join(kind for kind in kinds if kind) or name
    if field.get("type") == "array":
        text = f"list of {_type(field.get('items', {})) or 'anything'}"
    return f"{text} = {field['default']!r}" if field.get("default") not in (None, "") else text
