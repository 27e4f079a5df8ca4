"""The search page and the page of the API: each one file, whose scripts and styles its own policy names by digest."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, Response

_HERE = Path(__file__).parent
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.S)


def page_routes(api: FastAPI) -> APIRouter:
    """`/` and `/docs`."""
    routes = APIRouter(include_in_schema=False)
    told = cache(lambda: _reference(_HERE / "reference.html.j2", api.openapi()))

    @routes.get("/")
    async def search_page() -> Response:
        return _page((_HERE / "page.html").read_text(encoding="utf-8"))

    @routes.get("/docs")
    async def reference() -> Response:
        return _page(told())

    return routes


def _page(html: str) -> Response:
    return HTMLResponse(html, headers={"Content-Security-Policy": policy(html), "Cache-Control": "no-cache"})


@cache
def policy(html: str) -> str:
    """Content-Security-Policy of a page: its own script and style, requests to where it came from, nothing else."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(html):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
        digests[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(digests['script']) or repr('none')}",
            f"style-src {' '.join(digests['style']) or repr('none')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _reference(template: Path, schema: dict[str, Any]) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        info=schema["info"],
        paths=[
            (method.upper(), path, operation, _fields(operation, schema))
            for path, operations in schema["paths"].items()
            for method, operation in operations.items()
        ],
    )


def _fields(operation: dict[str, Any], schema: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Name, where, type and description of what a request gives."""
    rows = [
        (item["name"], item["in"], _type(item["schema"]), item.get("description", ""))
        for item in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for name, field in _resolved(body, schema).get("properties", {}).items():
        rows.append((name, "body", _type(field), field.get("description", "")))
    return rows


def _resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schema["components"]["schemas"][name] if name else part
    return found


def _type(field: dict[str, Any]) -> str:
    kinds = [_type(one) for one in field.get("anyOf", [])] or [" | ".join(map(str, field.get("enum", [])))]
    said = " or ".join(kind for kind in kinds if kind) or str(field.get("const", field.get("type", "")))
    if field.get("type") == "array":
        said = f"list of {_type(field.get('items', {}))}"
    return f"{said} = {field['default']!r}" if field.get("default") not in (None, "") else said
