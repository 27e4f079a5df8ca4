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
_MESSAGES = {
    400: "the body is not JSON in UTF-8, or holds what is too long or too deep",
    404: "no such path; /docs lists them",
    405: "no such method for this path; /docs lists them",
}
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


async def refusal(request: Request, error: Exception) -> JSONResponse:
    """What a client is told of an error: nothing of what it sent, of folders here, or of a defect, which is logged."""
    match error:
        case Problem():
            return problem(error.status, error.message, param=error.param, retry_s=error.retry_s)
        case UserError():
            return problem(422, _FOLDERS.sub("", line(error)))
        case RequestValidationError():
            first: Mapping[str, Any] = error.errors()[0]
            if first["type"] == "json_invalid":
                return problem(422, "the body is not JSON")
            param, message = ".".join(str(part) for part in first["loc"][1:]), str(first["msg"])
            return problem(422, f"{param or 'body'}: {message[:1].lower()}{message[1:]}", param=param)
        case HTTPException():  # a body that no parser gets through is a 400
            return problem(error.status_code, _MESSAGES.get(error.status_code, str(error.detail)))
    LOGGER.error("defect", exc_info=error, extra={"data": {"path": request.url.path}})
    return problem(500, "the service failed on this request; its log says where")


HANDLERS: dict[Any, Any] = dict.fromkeys(
    (Problem, UserError, RequestValidationError, HTTPException, Exception), refusal
)
