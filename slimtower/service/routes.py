"""The routes that answer: /search, /systems, /document, /events for clicks; and OpenAI's protocol for embeddings."""

import asyncio
import base64
import re
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeGuard

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from slimtower.common.errors import UserError
from slimtower.service.limits import charge, client_of
from slimtower.service.messages import (
    REFUSALS,
    ClickAnswer,
    ClickRequest,
    DocumentAnswer,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    Problem,
    SearchAnswer,
    SearchRequest,
    SystemsAnswer,
)
from slimtower.service.search_log import Client
from slimtower.service.service import SearchResult, Service, note_answer
from slimtower.service.settings import K
from slimtower.service.systems import Served, Serving
from slimtower.serving.dims import truncate
from slimtower.serving.display import Medians

CONSENT, CLIENT, PRIVACY = "x-search-consent", "x-search-client", "sec-gpc"
_CLIENT_LENGTH = 100
DEFAULT = "default"
_NO_TEXTS = "input: a text, or a list of texts, is what is embedded here"
_TOKENS = "input: numbers of tokens mean nothing elsewhere; send text (LangChain: check_embedding_ctx_length=False)"
_ROLES = ("input_type", "task", "task_type", "prompt_name")  # in which other servers are told what a text is
_DOCUMENTS = re.compile(r"document|passage|corpus|(?<![a-z])docs?(?![a-z])", re.IGNORECASE)  # in a role of one word


def search_routes(service: Service) -> APIRouter:
    routes = APIRouter(tags=["search"], responses=REFUSALS)

    @routes.post("/search", response_model=SearchAnswer)
    async def search(request: Request, body: SearchRequest) -> Response:
        """The best documents of a query, or of each of several. Logged searches need logging and the client's consent
        (header `X-Search-Consent: yes`)."""
        return await _search(service, request, body)

    @routes.get("/search", response_model=SearchAnswer)
    async def search_one(
        request: Request,
        query: Annotated[str | None, Query(description="the query")] = None,
        k: Annotated[int, Query(ge=1, description="hits")] = K,
        dataset: Annotated[str, Query(max_length=200, description="as with POST")] = "",
        system: Annotated[str, Query(max_length=200, description="as with POST")] = "",
        log: Annotated[bool, Query(description="as with POST")] = True,
        q: Annotated[str | None, Query(include_in_schema=False)] = None,
    ) -> Response:
        """The same for one query, by address."""
        if (query is None) == (q is None):
            raise Problem(422, "query: field required" if query is None else "q: is query, give one", param="query")
        body = SearchRequest(query=query or q or "", k=k, dataset=dataset, system=system, log=log)
        return await _search(service, request, body)

    run_facts: dict[str, Any] = {}
    computed_for: weakref.ref[Serving] | None = None  # weak: a replaced release is not kept
    computing = asyncio.Lock()

    def facts_of(serving: Serving) -> dict[str, Any]:
        teacher = service.baselines.teacher_name(serving.student("").release)
        return {"examples": service.examples(serving), "teacher": teacher}

    @routes.get("/systems", response_model=SystemsAnswer)
    async def systems() -> dict[str, Any]:
        """What answers now, what it was made of, and whether searches are logged."""
        nonlocal run_facts, computed_for
        serving = service.serving()
        async with computing:
            if computed_for is None or computed_for() is not serving:
                run_facts = await service.run(lambda: facts_of(serving))
                computed_for = weakref.ref(serving)
            facts = run_facts
        students = [served.facts() for served in serving.students.values()]
        baselines = [{"system": name, "kind": "baseline"} for name in service.baselines.names(serving)]
        for system in students + baselines:
            served = serving.student(system["system"] if system["kind"] == "student" else "")
            key = system["system"], served.release.datasets[0], served.release.manifest.checksum
            system["recent"] = _medians(service.recent.medians(*key))
        return facts | {
            "default": serving.default,
            "systems": students + baselines,
            "documents": service.corpus.state() is not None,
            "logging": service.settings.consent if service.log else "off",
            "report": service.report is not None,
        }

    @routes.get("/document", response_model=DocumentAnswer)
    async def document(id: Annotated[str, Query(description="of a hit")]) -> dict[str, str]:
        """A whole document, if the corpus lies beside the releases."""
        hit = await service.run(lambda: service.corpus.document(id))
        if hit is None:
            raise Problem(404, "no such document here", param="id")
        return {"id": hit.doc_id, "title": hit.title, "topic": hit.topic, "content": hit.content}

    @routes.post("/events", status_code=202, response_model=ClickAnswer)
    async def events(request: Request, body: ClickRequest) -> dict[str, bool]:
        """A click on a hit of a logged search: it becomes a UBI event."""
        if service.log is None:
            raise Problem(422, "searches are not logged here, so there is nothing to click on")
        if not _consents(service, request):
            raise Problem(422, "without consent (X-Search-Consent: yes) nothing is logged")
        client = _client(request)
        is_logged = service.log.click(body.query_id, client, body.dataset, body.object_id, body.position, body.click)
        return {"logged": is_logged}

    return routes


async def _search(service: Service, request: Request, body: SearchRequest) -> Response:
    texts = [body.query] if isinstance(body.query, str) else body.query
    service.check_texts(texts, "query")
    if body.k > service.settings.max_k:
        raise Problem(422, f"k: {body.k} hits; at most {service.settings.max_k}", param="k")
    if len(texts) * body.k > service.settings.max_hits:
        message = f"k: {len(texts)} queries of {body.k} hits; at most {service.settings.max_hits} hits in one request"
        raise Problem(422, message, param="k")
    charge(request.scope, len(texts), body.k)
    serving = service.serving()
    result, snippets = await service.run(lambda: _with_snippets(service, serving, body, texts), body.system)
    service.metrics.time("slimtower_search_seconds", result.times.search / 1e3, system=result.system)
    fields = {"dataset": result.dataset, "k": body.k}
    note_answer(service, request.scope, result.by, result.system, texts, result.times.encode, **fields)
    log = service.log if body.log and _consents(service, request) else None
    results = []
    for text, hits, hit_snippets in zip(texts, result.hits, snippets, strict=True):
        query_id, ids = str(uuid.uuid4()), [hit.id for hit in hits]
        facts = {"system": result.system, **result.by.identity}
        logged = log is not None and log.search(query_id, _client(request), text.strip(), result.dataset, ids, facts)
        rows: list[dict[str, Any]] = [
            {"rank": rank, "id": hit.id, "score": round(hit.score, 6), "title": hit.title, "snippet": snippet}
            for rank, (hit, snippet) in enumerate(zip(hits, hit_snippets, strict=True), start=1)
        ]
        if log and logged:
            for row, token in zip(rows, log.tokens(query_id, result.dataset, ids), strict=True):
                row["click"] = token
        results.append({"query_id": query_id, "logged": logged, "hits": rows})
    return JSONResponse(
        {
            "system": result.system,
            "release": result.by.identity,
            "dataset": result.dataset,
            "ms": {"encode": round(result.times.encode, 4), "search": round(result.times.search, 4)},
            "recent": _medians(result.recent),
            "results": results,
        }
    )


def _medians(recent: Medians | None) -> dict[str, float] | None:
    return recent and {name: round(value, 4) for name, value in recent._asdict().items()}


def _with_snippets(
    service: Service, serving: Serving, body: SearchRequest, texts: list[str]
) -> tuple[SearchResult, list[list[str]]]:
    result = service.search(serving, body.system, body.dataset, texts, body.k)
    pairs = zip(texts, result.hits, strict=True)
    return result, [service.corpus.snippets(text, [hit.id for hit in hits]) for text, hits in pairs]


def _consents(service: Service, request: Request) -> bool:
    """Whether this client's searches may be logged; a browser's wish for privacy always counts."""
    if request.headers.get(PRIVACY) == "1":
        return False
    return service.settings.consent == "given" or request.headers.get(CONSENT, "").lower() == "yes"


def _client(request: Request) -> Client:
    """Who searches: the id that the client gives itself, else its address."""
    client_id, address = request.headers.get(CLIENT, ""), client_of(request.scope)
    if len(client_id) > _CLIENT_LENGTH:
        raise UserError(f"X-Search-Client: at most {_CLIENT_LENGTH} characters")
    return Client(f"id {client_id}" if client_id else f"address {address}", address)


def embedding_routes(service: Service) -> APIRouter:
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
