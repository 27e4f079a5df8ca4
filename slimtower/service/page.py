"""The search page, the page of the API and the run's report: each one file, whose scripts its own policy names."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup, escape

from slimtower.service.messages import Problem
from slimtower.service.service import Service

_HERE = Path(__file__).parent
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.S)
Row = tuple[str, str, str, str]


def page_routes(api: FastAPI, service: Service) -> APIRouter:
    """`/`, `/docs` and `/report`."""
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


@cache
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
