"""OpenAI's protocol for embeddings: the encoder of a release, without its index."""

import base64
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from slimtower.common.errors import UserError
from slimtower.service.limits import charge
from slimtower.service.messages import REFUSALS, EmbeddingsAnswer, EmbeddingsRequest
from slimtower.service.problems import Problem
from slimtower.service.service import Service, note_answer
from slimtower.service.systems import Served
from slimtower.serving.dims import truncate

DEFAULT = "default"
_NO_TEXTS = "input: a text, or a list of texts, is what is embedded here"
_TOKENS = "input: numbers of tokens mean nothing elsewhere; send text (LangChain: check_embedding_ctx_length=False)"
_ROLES = ("input_type", "task", "task_type", "prompt_name")  # in which other servers are told what a text is
_DOCUMENTS = re.compile(r"document|passage|corpus|(?<![a-z])docs?(?![a-z])", re.IGNORECASE)  # in a role of one word


def embedding_routes(service: Service) -> APIRouter:
    """The routes of one process."""
    routes = APIRouter(tags=["embeddings"], responses=REFUSALS)

    @routes.post("/v1/embeddings", response_model=EmbeddingsAnswer)
    async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
        """Embeddings of queries, as the index of the same release takes them."""
        _check_queries(body.model_extra or {})
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not _are_texts(texts):
            are_tokens = all(isinstance(item, int | list) for item in texts)
            raise Problem(422, _TOKENS if are_tokens else _NO_TEXTS, param="input")
        service.check_texts(texts, "input")
        try:
            names = {"", DEFAULT, service.settings.embeddings_model}
            served = service.serving().student("" if body.model in names else body.model)
        except UserError as error:
            raise Problem(404, f"model: {error}", param="model") from None
        dim = body.dimensions or served.release.manifest.dim
        if dim not in (dims := sorted({served.release.manifest.dim, *served.release.manifest.dims})):
            raise Problem(422, f"dimensions: this release has {', '.join(map(str, dims))}", param="dimensions")
        charge(request.scope, len(texts))
        vectors, tokens, encode_ms = await service.run(lambda: _embedded(served, texts))
        note_answer(service, request.scope, served, served.name, texts, encode_ms)
        return JSONResponse(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
                    for index, vector in enumerate(truncate(vectors, dim))
                ],
                "model": body.model if body.model and body.model == service.settings.embeddings_model else served.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "release": served.identity,
            }
        )

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The students that embed."""
        names = service.serving().students
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "slimtower"} for name in names]}

    return routes


def _embedded(served: Served, texts: list[str]) -> tuple[np.ndarray, int, float]:
    """Vectors, tokens, and the milliseconds of encoding."""
    began = time.perf_counter()
    vectors = served.release.encode(texts)
    seconds = time.perf_counter() - began
    return vectors, sum(len(served.release.encoder.token_ids(text)) for text in texts), 1e3 * seconds


def _check_queries(fields: Mapping[str, Any]) -> None:
    """Problem if a field says that these are documents, whose vectors a student does not make."""
    for name in _ROLES:
        role = fields.get(name)
        if isinstance(role, str) and len(role.split()) == 1 and _DOCUMENTS.search(role):
            message = f"{name}: only queries are embedded here; documents go to the model that made the index"
            raise Problem(422, message, param=name)


def _are_texts(items: Sequence[Any]) -> TypeGuard[list[str]]:
    return all(isinstance(text, str) for text in items)


def _written(vector: np.ndarray, encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return [float(value) for value in vector]
