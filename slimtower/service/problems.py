"""What a client gets where it gets no answer: JSON in OpenAI's shape, with one line that says what to do."""

import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from slimtower.common.errors import UserError, line
from slimtower.service.logs import LOGGER

_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/:;,'\"]+/)+")
_KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class Problem(Exception):
    """A status and the line that goes with it; `param` names the field of the request that is wrong."""

    def __init__(self, status: int, message: str, *, param: str = "", retry_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.retry_s = status, message, param, retry_s


def problem(status: int, message: str, *, param: str = "", retry_s: int = 0) -> JSONResponse:
    """The response of a problem; `retry_s` becomes Retry-After."""
    error = {
        "message": message.encode("utf-8", "replace").decode("utf-8"),
        "type": _KINDS.get(status, "invalid_request_error"),
        "param": param or None,
        "code": status,
    }
    return JSONResponse({"error": error}, status, {"Retry-After": str(retry_s)} if retry_s else None)


async def respond_problem(request: Request, error: Exception) -> JSONResponse:
    """A Problem as its response."""
    assert isinstance(error, Problem)
    return problem(error.status, error.message, param=error.param, retry_s=error.retry_s)


async def user_error(request: Request, error: Exception) -> JSONResponse:
    """What a client can mend; which folder of this machine it is about is not told."""
    return problem(422, _FOLDERS.sub("", line(error)))


async def invalid(request: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong with a request, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(422, "the body is not JSON")
    param = ".".join(str(part) for part in first["loc"][1:])
    message = str(first["msg"])
    return problem(422, f"{param or 'body'}: {message[:1].lower()}{message[1:]}", param=param)


async def http_error(request: Request, error: Exception) -> JSONResponse:
    """An unknown path or method, or a body that no parser gets through."""
    assert isinstance(error, HTTPException)
    messages = {404: "no such path; /docs lists them", 405: "no such method for this path; /docs lists them"}
    messages[400] = "the body is not JSON in UTF-8, or holds what is too long or too deep"
    return problem(error.status_code, messages.get(error.status_code, str(error.detail)))


async def unexpected(request: Request, error: Exception) -> JSONResponse:
    """A defect: told in the log, not to the client."""
    LOGGER.error("defect", exc_info=error, extra={"data": {"path": request.url.path}})
    return problem(500, "the service failed on this request; its log says where")


HANDLERS: dict[Any, Any] = {
    Problem: respond_problem,
    UserError: user_error,
    RequestValidationError: invalid,
    HTTPException: http_error,
    Exception: unexpected,
}
