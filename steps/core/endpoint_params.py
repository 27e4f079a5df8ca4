"""What is said in params.yaml of a model behind an API, and of the server that answers for it. Read without torch."""

from typing import Any

from pydantic import Field

from steps.core.params import Strict


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


class Connection(Strict):
    """The server, and what it may be asked: none of it changes a vector."""

    base_url: str = Field(pattern=r"^https?://")
    """Address of the server, such as https://api.example.com/v1."""
    key_variable: str
    """Variable of the environment that holds the key; "" = none."""
    timeout_s: float = Field(gt=0)
    """Seconds that a request may take."""
    tries: int = Field(ge=1)
    """Tries of a request before the stage gives up."""
    batch_texts: int = Field(ge=1)
    """Most texts of one request."""
    batch_tokens: int = Field(ge=1)
    """Most tokens of one request, by estimate."""
    concurrency: int = Field(ge=1)
    """Requests under way at once."""
    requests_per_minute: int = Field(ge=0)
    """Limit of the server; 0 = none."""
    tokens_per_minute: int = Field(ge=0)
    """Limit of the server; 0 = none."""
    max_tokens_total: int = Field(ge=0)
    """Tokens asked of this model by all runs on one cache together, at which the stage stops; 0 = no limit."""
    price: float = Field(ge=0)
    """Price of a million tokens, in any currency; 0.0 = unknown."""

    def cost(self, tokens: float) -> str:
        """So many tokens in words, with what they cost where a price is known."""
        return f"{tokens:,.0f} tokens" + (f", {tokens * self.price / 1e6:,.4f} at {self.price}" if self.price else "")
