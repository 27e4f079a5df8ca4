"""What goes in and out of the service, as OpenAPI describes it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

K = 10
_MOST_FIELDS = 50

# One error of a list is enough: a body of a megabyte can hold hundreds of thousands
Texts = Annotated[list[str], Field(fail_fast=True)]
Name = Annotated[str, Field(max_length=200)]


class Request(BaseModel):
    """A request: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        """Else each unknown field would be an error of its own."""
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise ValueError(f"{len(given)} fields; a request may have {', '.join(cls.model_fields)}")
        return given


class SearchRequest(Request):
    """One query or several, of one data set, for one system."""

    query: str | Texts = Field(description="a query, or a batch of them")
    k: int = Field(K, ge=1, description="hits of each query")
    dataset: Name = Field("", description="data set to search; empty: the release's first")
    system: Name = Field("", description="a student, `teacher` or `bm25`; empty: the default (see /systems)")
    log: bool = Field(True, description="whether this search may be logged, if logging is on and the client consents")


class HitOut(BaseModel):
    """A document that was found."""

    rank: int
    id: str
    score: float
    title: str
    snippet: str = ""
    click: str | None = Field(None, description="of a logged search: what /events takes to believe a click")


class ResultOut(BaseModel):
    """What one query found."""

    query_id: str
    logged: bool
    hits: list[HitOut]


class ReleaseOut(BaseModel):
    """The release that gave an answer: encoder and index are its own."""

    student: str
    manifest: str = Field(description="checksum of its manifest")
    version: str = Field(description="in the registry; empty for a local release")


class MillisecondsOut(BaseModel):
    """Time of one request, all its queries together."""

    encode: float
    search: float


class SearchAnswer(BaseModel):
    """Results in the order of the queries."""

    system: str
    release: ReleaseOut
    dataset: str
    ms: MillisecondsOut
    results: list[ResultOut]


class EmbeddingsRequest(BaseModel):
    """OpenAI's request; other fields are ignored, unless one says that these are documents."""

    model_config = ConfigDict(extra="allow")

    input: str | list[Any] = Field(description="a text, or a batch of them; not tokens")
    model: Name = Field(
        "", description="a student; empty or `default`: the default, as is the service's --embeddings-model"
    )
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(None, ge=1, description="the release's own, or fewer that it was trained for")


class EmbeddingOut(BaseModel):
    """One embedding: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class UsageOut(BaseModel):
    """Tokens that the encoder read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """OpenAI's answer, with the release that gave it."""

    object: Literal["list"] = "list"
    data: list[EmbeddingOut]
    model: str
    usage: UsageOut
    release: ReleaseOut


class ClickRequest(Request):
    """A hit of a logged search that was clicked."""

    action_name: Literal["click"] = "click"
    query_id: Annotated[str, Field(max_length=64)]
    dataset: Name
    object_id: Annotated[str, Field(max_length=1000, description="the hit's id")]
    position: int = Field(ge=1, description="the hit's rank")
    click: Annotated[str, Field(max_length=100, description="as the hit had it")]


class ErrorDetail(BaseModel):
    """What is wrong, in one line."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorOut(BaseModel):
    """Every refusal."""

    error: ErrorDetail


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorOut, "description": said}
    for status, said in {
        413: "body too large",
        422: "not a valid request",
        429: "too many requests of this client; see Retry-After",
        503: "no release is loaded, or too many requests at once; see Retry-After",
    }.items()
}
