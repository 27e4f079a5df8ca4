"""A Kubernetes API over HTTP that knows pods alone: what the pod operator and its client need of a cluster."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PODS = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods(/(?P<name>[^/]+)(?P<log>/log)?)?")
LOG = "first\nthe last line says why\n"
NO_CODE: dict[str, Any] = {"phase": "Failed", "reason": "Evicted"}


def ended(code: int) -> dict[str, Any]:
    """Status of a pod whose container has just ended; after an error with the log's end as its message."""
    terminated = {"exitCode": code, "finishedAt": _timestamp(), "message": LOG if code else ""}
    return _status("Failed" if code else "Succeeded", {"terminated": terminated})


def running() -> dict[str, Any]:
    """Status of a pod whose container runs."""
    return _status("Running", {"running": {"startedAt": _timestamp()}})


class Cluster:
    """The pods of a cluster; one that is created has `status` from then on."""

    def __init__(self) -> None:
        self.status = ended(0)
        self.created: list[dict[str, Any]] = []  # as they were asked for
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}  # those that are there, by namespace and name
        self.when_log_is_read: Callable[[], object] = lambda: None

    def add(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Create a pod."""
        self.pods[pod["metadata"]["namespace"], pod["metadata"]["name"]] = pod | {"status": self.status}
        return pod

    def set_status(self, status: dict[str, Any]) -> None:
        """Give the pods that are there another status."""
        for pod in self.pods.values():
            pod["status"] = status

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        """HTTP status and content for a request; a log is text."""
        parts = urlsplit(url)
        match = PODS.fullmatch(parts.path)
        if match is None:
            return 404, _missing(parts.path)
        if method == "POST":
            self.created.append(body)
            return 201, self.add(body)
        key = match["namespace"], match["name"]
        if not match["name"]:
            selector = parse_qs(parts.query).get("labelSelector", [""])[0]
            pods = [pod for (namespace, _), pod in self.pods.items() if namespace == key[0]]
            return 200, {"kind": "PodList", "items": [pod for pod in pods if _matches(pod, selector)]}
        if match["log"]:
            self.when_log_is_read()
            return 200, "".join(f"{_timestamp()} {line}\n" for line in LOG.splitlines())
        if key not in self.pods:
            return 404, _missing(match["name"])
        if method == "PATCH":
            self.pods[key]["metadata"].setdefault("labels", {}).update(body["metadata"]["labels"])
        return 200, self.pods.pop(key) if method == "DELETE" else self.pods[key]


@contextmanager
def serve(cluster: Cluster) -> Iterator[str]:
    """Serve a cluster; the value of AIRFLOW_CONN_KUBERNETES_DEFAULT that leads to it."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            code, content = cluster.answer(self.command, self.path, json.loads(body or "null"))
            is_log = isinstance(content, str)
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if is_log else "application/json")
            self.end_headers()
            self.wfile.write((content if is_log else json.dumps(content)).encode())

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        config = {
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "fake", "user": {}}],
        }
        yield json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": config}})
        server.shutdown()


def _status(phase: str, state: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "base", "image": "i", "imageID": "i", "ready": False, "restartCount": 0, "state": state}
    return {"phase": phase, "containerStatuses": [container]}


def _matches(pod: dict[str, Any], selector: str) -> bool:
    """Whether a pod's labels are as a selector of the forms `a=b`, `a!=b` and `!a` asks."""
    labels = pod["metadata"].get("labels", {})
    for term in filter(None, selector.split(",")):
        name, sign, value = re.fullmatch(r"(!?[^=!]+)(!?=)?(.*)", term).groups()  # type: ignore[union-attr]
        if not sign and (name.lstrip("!") in labels) == name.startswith("!"):
            return False
        if sign and (labels.get(name) == value) != (sign == "="):
            return False
    return True


def _missing(name: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": f"{name} not found"}


def _timestamp() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
