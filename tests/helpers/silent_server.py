"""Servers that keep silent: one takes connections and never answers, the other one's network drops what is sent."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def never_answers() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(100)  # the system takes them; nobody reads
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def never_connects() -> Iterator[str]:
    """The address of a server whose queue of connections is full: to more of them the system says nothing."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
