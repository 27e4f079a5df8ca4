"""What is said in params.yaml of a model behind an API, and of the server that answers for it. Read without torch."""

from typing import Any

from pydantic import Field

from steps.core.params import Strict


class Reads(Strict):
    """How a text of one role is sent: behind `prompt`, cut to `max_length` tokens, with `body` in the request.

    `body` is what a server with roles wants, such as `{input_type: query}`.
    """

    prompt: str
    body: dict[str, Any]
    max_length: int = Field(ge=1)


class Connection(Strict):
    """The server, and what it may be asked: none of it changes a vector."""

    base_url: str = Field(pattern=r"^https?://")
    key_variable: str  # of the environment; "" = none
    timeout_s: float = Field(gt=0)
    tries: int = Field(ge=1)
    batch_texts: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    concurrency: int = Field(ge=1)
    requests_per_minute: int = Field(ge=0)
    tokens_per_minute: int = Field(ge=0)
    max_tokens_total: int = Field(ge=0)
    price: float = Field(ge=0)  # of a million tokens

    def cost(self, tokens: float) -> str:
        """So many tokens in words, with what they cost where a price is known."""
        return f"{tokens:,.0f} tokens" + (f", {tokens * self.price / 1e6:,.4f} at {self.price}" if self.price else "")
