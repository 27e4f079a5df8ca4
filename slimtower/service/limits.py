"""What clients may ask of a process, one or all: rate, requests at once, bytes of a body, hits, connections."""

import asyncio
import ipaddress
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial

from starlette.datastructures import URL
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from slimtower.service.messages import problem
from slimtower.service.settings import K, Settings
from slimtower.service.telemetry import Metrics

UNLIMITED = ("/health", "/health/live", "/metrics")  # probes must get through when nobody else does
CHARGE = "slimtower.charge"  # of a scope: takes more tokens of its client
_BATCH = 10  # queries of K hits that count as one request
_SHARE = 4  # a client may have one in so many of the requests at once
_CLIENTS = 10_000  # whose buckets are kept
_BODY_S = 15.0  # so long may a client take to send a body
_WITHOUT_BODY = ("GET", "HEAD")  # a body of theirs is not read
HEAD_S = 15.0  # so long may a client take to send a request's head
TAKE_S = 30.0  # so long may a client take to read what it is sent
_V6_NETWORK = 64  # bits that tell one subscriber from another


class Buckets:
    """A token bucket for each client: `rate` tokens a second, at most twice as many at once."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.size, self._clock = rate, max(2 * rate, 1.0), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is one."""
        if not self.rate:
            return 0.0
        moment = self._clock()
        tokens, last = self._buckets.pop(client, (self.size, moment))
        tokens = min(self.size, tokens + (moment - last) * self.rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - allowed, moment)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self.rate

    def charge(self, client: str, tokens: float) -> None:
        """Take more tokens of one who has taken a token already; what is owed is waited for before the next."""
        if client in self._buckets:
            tokens_left, last = self._buckets[client]
            self._buckets[client] = (tokens_left - tokens, last)


class Limits:
    """ASGI middleware: 429 and 503 with Retry-After, 413, 408 for a body that does not arrive, 421 for another host.

    A page of elsewhere whose name comes to mean this machine would be of the service's own origin, but for its name.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.metrics, self.hosts = app, metrics, settings.hosts
        self.max_requests, self.max_body = settings.max_requests, settings.max_body
        self.of_one = max(1, self.max_requests // _SHARE) if settings.rate else self.max_requests
        self.buckets, self.running, self.running_of = Buckets(settings.rate), 0, Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.hosts and host_of(scope) not in self.hosts:
            names = ", ".join(self.hosts)
            await self._refuse(scope, receive, send, 421, f"this service answers as {names}; --hosts gives other names")
            return
        if scope["path"] in UNLIMITED and scope["method"] in _WITHOUT_BODY:
            await self.app(scope, receive, send)
            return
        client = client_of(scope)
        if wait := self.buckets.wait_s(client):
            await self._refuse(scope, receive, send, 429, "too many requests; wait, then go on", math.ceil(wait))
            return
        if self.running >= self.max_requests:
            await self._refuse(scope, receive, send, 503, "too many requests at once; try again", 1)
            return
        if self.running_of[client] >= self.of_one:
            await self._refuse(scope, receive, send, 429, "too many requests of yours at once; try again", 1)
            return
        scope[CHARGE] = partial(self.buckets.charge, client)
        self.running += 1
        self.running_of[client] += 1
        try:
            await self._with_body(scope, receive, _until_taken(send))
        finally:
            self.running -= 1
            self.running_of -= Counter([client])  # one that has none left is forgotten

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        too_large = f"the body is larger than {self.max_body} bytes"
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_body:
            await self._refuse(scope, receive, send, 413, too_large)
            return
        if scope["method"] in _WITHOUT_BODY:
            await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > self.max_body:
                        await self._refuse(scope, receive, send, 413, too_large)
                        return
        except ClientDisconnect:
            return
        except TimeoutError:
            await self._refuse(scope, receive, send, 408, f"the body did not arrive within {_BODY_S:.0f} s")
            return
        await self.app(scope, _again(bytes(body), receive), send)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, status: int, message: str, retry_s: int = 0
    ) -> None:
        self.metrics.count("slimtower_refused_total", status=str(status))
        response = problem(status, message, retry_s=retry_s)
        if status in (408, 413):  # what is still on its way is not read
            response.headers["Connection"] = "close"
        await response(scope, receive, send)


def charge(scope: Scope, queries: int, k: int = K) -> None:
    """Let a request with many queries, or hits, count as several against its client's rate."""
    if CHARGE in scope:
        scope[CHARGE](max(queries * max(k, K) / (_BATCH * K) - 1, 0))


def host_of(scope: Scope) -> str:
    """The name by which a request calls the service, without its port; "" where there is none."""
    try:
        return URL(scope=scope).hostname or ""
    except ValueError:
        return ""


def client_of(scope: Scope) -> str:
    """Who asks: an address, of IPv6 its network."""
    host = (scope.get("client") or ("unknown", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if address.version == 6 and (v4 := address.ipv4_mapped):  # as sockets for both versions tell it
        return str(v4)
    if address.version == 6:
        return str(ipaddress.ip_network((address, _V6_NETWORK), strict=False))
    return str(address)


def _until_taken(send: Send) -> Send:
    """A `send` that returns once the client has taken the answer, so that as much of it counts as is in memory."""

    async def sending(message: Message) -> None:
        if message.get("body") and not message.get("more_body"):
            await send({**message, "more_body": True})
            message = {"type": message["type"], "body": b""}  # before this the server waits for what is unsent
        await send(message)

    return sending


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read, then what the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


class Connection(H11Protocol):
    """A connection that is cut when its client keeps it waiting, or when it is idle and one above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.transport.set_write_buffer_limits(0)  # `pause_writing` tells of all that is unsent, however little
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._heard = self.loop.time()
        self._expect("head", HEAD_S)
        limit, self.limit_concurrency = self.config.limit_concurrency, None  # uvicorn would refuse all, probes too
        if limit and len(self.connections) > limit:
            self._cut_idle()

    def data_received(self, data: bytes) -> None:
        """Pass on; what is not yet a request has to become one in time."""
        self._heard = self.loop.time()
        super().data_received(data)
        if self._answering():
            self._arrived("head")
        else:
            self._expect("head", HEAD_S)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        super().pause_writing()
        self._expect("reading", TAKE_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._arrived("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        for event in list(self._timers):
            self._arrived(event)
        super().connection_lost(exc)

    def _expect(self, event: str, seconds: float) -> None:
        if event not in self._timers:
            self._timers[event] = self.loop.call_later(seconds, self.transport.abort)

    def _arrived(self, event: str) -> None:
        if event in self._timers:
            self._timers.pop(event).cancel()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _cut_idle(self) -> None:
        peers = [connection for connection in self.connections if isinstance(connection, Connection)]
        idle = [peer for peer in peers if not (peer._answering() or peer.transport.is_closing())]
        min(idle, key=lambda peer: peer._heard).transport.abort()  # this one is among them
