"""A server of /v1/embeddings on a local port that reads with a tower here, and misbehaves when it is told to."""

import asyncio
import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

KEY = "sk-planted-key-0123456789"
Reader = Callable[[list[str], dict[str, Any]], np.ndarray]


@dataclass
class EmbeddingServer:
    """What it is told: by request, in their order, what to do wrong; what it remembers: texts asked and paid, requests.

    Faults: busy (429), error (500), slow, half (no JSON), broken (off in the middle), nan, few, shuffled, dimension,
    refused (400).
    """

    read: Reader
    faults: list[str] = field(default_factory=list)
    refuse: Callable[[dict[str, Any]], bool] = lambda body: False
    keyless: bool = False
    retry_after: str = "0.2"
    delay: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    paid: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""

    async def embeddings(self, request: Request) -> Response:
        """Answer one request."""
        body = await request.json()
        self.times.append(time.monotonic())
        self.bodies.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        fault = self.faults.pop(0) if self.faults else ""
        try:
            await asyncio.sleep(self.delay)
            return await self._answer(request, body, fault)
        finally:
            self.at_once -= 1

    async def _answer(self, request: Request, body: dict[str, Any], fault: str) -> Response:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self.asked.update(texts)
        if not self.keyless and request.headers.get("authorization") != f"Bearer {KEY}":
            authorization = request.headers.get("authorization")
            return JSONResponse({"error": {"message": f"wrong key {authorization}", "code": "invalid_api_key"}}, 401)
        match "refused" if self.refuse(body) else fault:
            case "busy":
                headers = {"Retry-After": self.retry_after}
                return JSONResponse({"error": {"message": "slow down"}}, 429, headers)
            case "error":
                return JSONResponse({"error": {"message": "oops"}}, 500)
            case "refused":
                return JSONResponse({"error": {"message": "too long"}}, 400)
            case "slow":
                await asyncio.sleep(1.0)
        vectors = self.read(texts, body)[:, : body.get("dimensions")]
        self.paid.update(texts)  # of any answer, be it of use or not
        if fault == "dimension":
            vectors = vectors[:, :-1]
        if fault == "nan":
            vectors = np.full_like(vectors, np.nan)
        rows = [{"object": "embedding", "index": at, "embedding": _coded(row, body)} for at, row in enumerate(vectors)]
        if fault == "shuffled":
            rows = rows[::-1]
        if fault == "few":
            rows = rows[:-1]
        tokens = sum(len(text.split()) for text in texts)
        answer = {"object": "list", "data": rows, "model": body["model"], "usage": {"total_tokens": tokens}}
        if fault == "half":
            content = json.dumps(answer).encode()
            return Response(content[: len(content) // 2], media_type="application/json")
        if fault == "broken":
            content = json.dumps(answer).encode()
            return Response(content[: len(content) // 2], headers={"Content-Length": str(len(content))})
        return JSONResponse(answer)


def _coded(row: np.ndarray, body: dict[str, Any]) -> list[float] | str:
    if body.get("encoding_format") == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(value) for value in row]


def tower_reader(tower: SentenceTransformer) -> Reader:
    """Reads text by text, so that a vector does not depend on its batch; those of input_type document are negated."""

    def embed_texts(texts: list[str], body: dict[str, Any]) -> np.ndarray:
        vectors = np.stack([tower.encode(text, show_progress_bar=False) for text in texts])
        return -vectors if body.get("input_type") == "document" else vectors

    return embed_texts


@contextmanager
def serving(reader: Reader, **settings: Any) -> Iterator[EmbeddingServer]:
    """Run the server in a thread."""
    state = EmbeddingServer(reader, **settings)
    app = Starlette(routes=[Route("/v1/embeddings", state.embeddings, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    state.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield state
    finally:
        server.should_exit = True
        thread.join(10)
