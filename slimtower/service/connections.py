"""HTTP/1.1 as uvicorn speaks it, where no client holds a connection by half a request or by an answer left unread."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 15.0  # so long may a client take to send a request's head
TAKE_S = 30.0  # so long may a client take to read what it is sent


class Connection(H11Protocol):
    """A connection that is cut when its client keeps it waiting, or when it is idle and one above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a first request."""
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
        """The client has read all."""
        super().resume_writing()
        self._arrived("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected any more."""
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
