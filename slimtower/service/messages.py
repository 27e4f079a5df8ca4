"""What goes in and out of the service, as OpenAPI describes it, and what a client gets where it gets no answer."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from slimtower.common.errors import UserError, line
from slimtower.service.settings import K
from slimtower.service.telemetry import HEADED, LOGGER
from slimtower.serving.display import EXAMPLE

SEARCH_EXAMPLE: dict[str, Any] = {
    "system": "4l",
    "release": {"student": "4l", "manifest": "38a33004...", "version": ""},
    "dataset": "api",
    "ms": {"encode": 0.81, "search": 1.42},
    "recent": {"calls": 20, "total": 2.24, "encode": 0.8},
    "results": [
        {
            "query_id": "0b0e7f0c-...",
            "logged": False,
            "hits": [
                {
                    "rank": 1,
                    "id": "api/matplotlib.axes.Axes.hist",
                    "score": 1.0,
                    "title": "matplotlib.axes.Axes.hist",
                    "snippet": "This method uses numpy.histogram to bin the data ...",
                }
            ],
        }
    ],
}
_MOST_FIELDS = 50

# One error of a list is enough: a body of a megabyte can hold hundreds of thousands
Texts = Annotated[list[str], Field(fail_fast=True)]
Name = Annotated[str, Field(max_length=200)]
_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/:;,'\"]+/)+")
_MESSAGES = {
    400: "the body is not JSON in UTF-8, or holds what is too long or too deep",
    404: "no such path; /docs lists them",
    405: "no such method for this path; /docs lists them",
}
_KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}


class Body(BaseModel):
    """A request: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, body: Any) -> Any:
        """Else each unknown field would be an error of its own."""
        if isinstance(body, dict) and len(body) > _MOST_FIELDS:
            raise ValueError(f"{len(body)} fields; a request may have {', '.join(cls.model_fields)}")
        return body


class SearchRequest(Body):
    """One query or several, of one data set, for one system."""

    query: str | Texts = Field(validation_alias=AliasChoices("query", "q"), description="a query, or a list of them")
    k: int = Field(K, ge=1, description="hits of each query")
    dataset: Name = Field("", description="data set to search; empty: the release's first")
    system: Name = Field("", description="a name that `/systems` lists; empty: the default student")
    log: bool = Field(True, description="whether this search may be logged, if logging is on and the client consents")


class HitOut(BaseModel):
    """A document that was found."""

    rank: int = Field(description="1 for the best hit")
    id: str = Field(description="the document's id, as in the index")
    score: float = Field(description="inner product, BM25's score, or the fused score")
    title: str = Field(description="the document's title; may be empty")
    snippet: str = Field("", description="the part of the document that fits the query; empty without a corpus")
    click: str | None = Field(None, description="of a logged search: what `/events` takes to believe a click")


class ResultOut(BaseModel):
    """What one query found."""

    query_id: str = Field(description="names the search in the log, and for `/events`")
    logged: bool = Field(description="whether the search log has this search")
    hits: list[HitOut] = Field(description="best first")


class ReleaseOut(BaseModel):
    """The release that gave an answer: encoder and index are its own."""

    student: str = Field(description="the student's name")
    manifest: str = Field(description="checksum of its manifest")
    version: str = Field(description="in the registry; empty for a local release")


class MillisecondsOut(BaseModel):
    """Time of one request, all its queries together."""

    encode: float = Field(description="milliseconds from the texts to their vectors")
    search: float = Field(description="milliseconds from the vectors to the hits")


class RecentOut(BaseModel):
    """Medians of the last calls of this system with one query, in the process that answers."""

    calls: int = Field(description="calls that the medians are of, at most 20")
    total: float = Field(description="milliseconds from text to hits, median")
    encode: float = Field(description="milliseconds of it for encoding, median")


class SearchAnswer(BaseModel):
    """Results in the order of the queries."""

    model_config = ConfigDict(json_schema_extra={"examples": [SEARCH_EXAMPLE]})

    system: str = Field(description="the system that answered")
    release: ReleaseOut = Field(description="the release that answered")
    dataset: str = Field(description="the data set that was searched")
    ms: MillisecondsOut = Field(description="times of this request")
    recent: RecentOut | None = Field(None, description="times of the last calls; null for a batch")
    results: list[ResultOut] = Field(description="one for each query, in their order")


class DocumentAnswer(BaseModel):
    """A whole document."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"id": "api/PIL.Image.Image.resize", "title": "PIL.Image.Image.resize",
                                         "topic": "PIL.Image", "content": ":param size: The requested size ..."}]}
    )  # fmt: skip

    id: str = Field(description="the document's id")
    title: str = Field(description="its title")
    topic: str = Field(description="its topic")
    content: str = Field(description="its text, whole")


class SystemsAnswer(BaseModel):
    """What answers now."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{
            "default": "4l", "documents": True, "logging": "off", "report": True,
            "examples": {"api": [EXAMPLE]}, "teacher": "all-MiniLM-L6-v2",
            "systems": [{"system": "4l", "kind": "student", "layers": 4, "format": "onnx", "precision": "int8",
                         "datasets": {"api": 6000}, "since": "2026-01-31T12:00:00Z"},
                        {"system": "bm25", "kind": "baseline"}],
        }]}
    )  # fmt: skip

    default: str = Field(description="the student that answers if a request names none")
    systems: list[dict[str, Any]] = Field(description="what answers, and of students what they were made of")
    documents: bool = Field(description="whether `/document` has the documents")
    logging: str = Field(description="whether searches are logged: `off`, `header` (with consent) or `given`")
    report: bool = Field(description="whether `/report` has the report of the run")
    examples: dict[str, list[str]] = Field(description="queries to try, by data set")
    teacher: str = Field(description="the model that the teacher of the default student is, or was trained from")


class ClickAnswer(BaseModel):
    """Whether a click is in the log."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"logged": True}]})

    logged: bool = Field(description="whether the log has it: it must be of a logged search")


class EmbeddingsRequest(BaseModel):
    """OpenAI's request; other fields are ignored, unless one says that these are documents."""

    model_config = ConfigDict(extra="allow")

    input: str | list[Any] = Field(description="a text, or a batch of them; not tokens")
    model: Name = Field(
        "", description="a student; empty or `default`: the default, as is the service's --embeddings-model"
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="numbers, or little-endian float32 in base64"
    )
    dimensions: int | None = Field(None, ge=1, description="the release's own, or fewer that it was trained for")


class EmbeddingOut(BaseModel):
    """One embedding: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = Field("embedding", description="always the same, as in OpenAI's protocol")
    index: int = Field(description="position of its text in `input`")
    embedding: list[float] | str = Field(description="the vector, as `encoding_format` says")


class UsageOut(BaseModel):
    """Tokens that the encoder read."""

    prompt_tokens: int = Field(description="tokens of all texts")
    total_tokens: int = Field(description="the same")


class EmbeddingsAnswer(BaseModel):
    """OpenAI's answer, with the release that gave it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{
            "object": "list", "model": "4l", "usage": {"prompt_tokens": 5, "total_tokens": 5},
            "data": [{"object": "embedding", "index": 0, "embedding": [0.0132, -0.0471, "..."]}],
            "release": SEARCH_EXAMPLE["release"],
        }]}
    )  # fmt: skip

    object: Literal["list"] = Field("list", description="always the same, as in OpenAI's protocol")
    data: list[EmbeddingOut] = Field(description="one for each text, in their order")
    model: str = Field(description="the student that encoded")
    usage: UsageOut = Field(description="tokens that were read")
    release: ReleaseOut = Field(description="the release whose encoder this is")


class ClickRequest(Body):
    """A hit of a logged search that was clicked."""

    action_name: Literal["click"] = Field("click", description="the kind of event; there is this one")
    query_id: Annotated[str, Field(max_length=64, description="of the search's result")]
    dataset: Name = Field(description="the data set that was searched")
    object_id: Annotated[str, Field(max_length=1000, description="the hit's id")]
    position: int = Field(ge=1, description="the hit's rank")
    click: Annotated[str, Field(max_length=100, description="as the hit had it")]


class ErrorDetail(BaseModel):
    """What is wrong, in one line."""

    message: str = Field(description="what is wrong, and what to do")
    type: str = Field(description="`invalid_request_error`, `rate_limit_error` or `server_error`")
    param: str | None = Field(None, description="the field that is wrong, if it is one")
    code: int = Field(description="the status")


class ErrorOut(BaseModel):
    """Every refusal."""

    error: ErrorDetail = Field(description="the one thing to mend first")


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": description}
    for status, description in {
        413: "body too large",
        415: "a body that is not said to be JSON",
        422: "not a valid request",
        429: "too many requests of this client; see Retry-After",
        503: "no release is loaded, or too many requests at once; see Retry-After",
    }.items()
}


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
            is_unsaid = "json" not in request.headers.get("content-type", "").lower()
            if first["loc"] == ("body",) and first["type"] != "missing" and is_unsaid:
                return problem(415, "the body is not said to be JSON; send the header Content-Type: application/json")
            param, message = ".".join(map(str, first["loc"][1:2])), str(first["msg"])  # of a type among several no word
            return problem(422, f"{param or 'body'}: {message[:1].lower()}{message[1:]}", param=param)
        case HTTPException():  # a body that no parser gets through is a 400
            response = problem(error.status_code, _MESSAGES.get(error.status_code, str(error.detail)))
            if error.status_code == 405:
                response.headers["Allow"] = ", ".join(_allowed(request))
            return response
    LOGGER.error("defect", exc_info=error, extra={"data": {"path": request.url.path}})
    return problem(500, "the service failed on this request; its log says where")


def _allowed(request: Request) -> list[str]:
    """Methods of the request's path; pages, which are in no schema, have GET."""
    path = request.url.path
    methods = {method.upper() for method in request.app.openapi()["paths"].get(path, ["get"])}
    return sorted(methods | ({"HEAD"} if path in HEADED else set()))


HANDLERS: dict[Any, Any] = dict.fromkeys(
    (Problem, UserError, RequestValidationError, HTTPException, Exception), refusal
)
