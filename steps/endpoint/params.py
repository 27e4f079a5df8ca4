"""What is said in params.yaml of a model behind an API, and of the server that answers for it. Read without torch."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from slimtower.common.masking import names_secret
from slimtower.common.settings import Strict, Variable


def _paths(value: Any, inside: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield f"{inside}{name}"
            yield from _paths(item, f"{inside}{name}.")
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, inside)


class Reads(Strict):
    """How a text of one role is sent: behind `prompt`, cut to `max_length` tokens, with `body` in the request.

    `body` is what a server with roles wants, such as `{input_type: query}`.
    """

    prompt: str = ""
    """Text that goes in front of each text."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request, such as {input_type: query} for a server that tells queries from documents."""
    max_length: int = Field(default=512, ge=1)
    """Tokens, by estimate, at which a text is cut."""

    @field_validator("body")
    @classmethod
    def _no_secret(cls, body: dict[str, Any]) -> dict[str, Any]:
        """What is said here is written down: by MLflow, and beside the teacher."""
        if secret := next((path for path in _paths(body) if names_secret(path.rpartition(".")[2])), None):
            raise ValueError(f"{secret} would be written down here; give the key in connection.key_variable")
        return body


class Connection(Strict):
    """The server, and what it may be asked: none of it changes a vector."""

    base_url: str = Field(pattern=r"^https?://[^@?\s]+$")
    """Of the server, such as https://api.example.com/v1; no key in it, as it is written down."""
    key_variable: Variable
    """Variable of the environment that holds the key; "" = none."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that a request may take."""
    tries: int = Field(default=8, ge=1)
    """Of a request, before the stage gives up."""
    batch_texts: int = Field(default=96, ge=1)
    """Texts of a request, at most: Cohere takes 96, TEI 32 unless told otherwise, others more."""
    concurrency: int = Field(default=4, ge=1)
    """Requests under way at once."""
    requests_per_minute: int = Field(default=0, ge=0)
    """Limit of the server, for one process; 0 = none."""
    tokens_per_minute: int = Field(default=0, ge=0)
    """Limit of the server, for one process; 0 = none."""
    max_tokens_total: int = Field(ge=0)
    """Tokens of this model, all runs on one cache together, before which the stage stops; 0 = no limit."""
    price: float = Field(default=0.0, ge=0)
    """Of a million tokens; 0.0 = unknown."""

    @field_validator("base_url")
    @classmethod
    def _has_a_host_and_a_port(cls, base_url: str) -> str:
        """What a client would only say once it is asked."""
        try:
            host, _ = urlsplit(base_url).hostname, urlsplit(base_url).port
        except ValueError as error:
            raise ValueError(f"is no address ({error}); give one such as https://api.example.com/v1") from None
        if not host:
            raise ValueError("names no host; give an address such as https://api.example.com/v1")
        return base_url

    def cost(self, tokens: float) -> str:
        """So many tokens in words, with what they cost where a price is known."""
        return f"{tokens:,.0f} tokens" + (f", {tokens * self.price / 1e6:,.4f} at {self.price}" if self.price else "")
