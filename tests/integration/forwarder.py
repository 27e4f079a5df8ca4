"""Let containers reach a server that listens on this machine's loopback alone."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit


def own_address() -> str:
    """This machine's address on its network, which containers reach; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@contextlib.contextmanager
def forwarded(url: str) -> Iterator[str]:
    """`url` as containers reach it: itself, or where it names the loopback an address that passes bytes on to it."""
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost"):
        yield url
        return
    with socket.create_server((own_address(), 0)) as server:
        threading.Thread(target=_accept, args=(server, (parts.hostname, parts.port or 80)), daemon=True).start()
        host, port = server.getsockname()
        yield urlunsplit(parts._replace(netloc=f"{host}:{port}"))


def _accept(server: socket.socket, target: tuple[str, int]) -> None:
    with contextlib.suppress(OSError):  # closed at the end
        while True:
            near, _ = server.accept()
            try:
                far = socket.create_connection(target)
            except OSError:
                near.close()
                continue
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
