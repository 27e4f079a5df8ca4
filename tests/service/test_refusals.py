"""How the service refuses: in one line that names the field, whatever came."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from serve_fakes import open_client, refusal
from starlette.testclient import TestClient

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def client(released: Path) -> Iterator[TestClient]:
    client, _ = open_client(released / "models/release", baselines=True)
    with client:
        yield client


WRONG = {
    "/search": [
        ({"query": "sum", "nope": 1}, 422, "nope: extra inputs"),
        ({"query": "sum", "k": 21}, 422, "at most 20"),
        ({"query": " "}, 422, "empty"),
        ({"query": ["a"] * 5}, 413, "at most 4"),
        ({"query": ["a"] * 3, "k": 20}, 422, "k: 3 queries of 20 hits; at most 40 hits in one request"),
        ({"query": "a" * 201}, 413, "at most 200"),
        ({"query": "sum", "dataset": "three"}, 422, "no index of 'three'; it has one, two"),
        ({"query": "sum", "system": "9l"}, 422, "'9l' does not answer here; choose one of 2l, static"),
        ({"query": "sum", "dataset": "x-amz-" * 500}, 422, "at most 200"),
    ],
    "/v1/embeddings": [
        ({"input": "sum", "model": "gpt"}, 404, "model: system 'gpt'"),
        ({"input": "sum", "dimensions": 16}, 422, "this release has 32"),
        ({"input": ""}, 422, "a text is empty"),
        ({"input": [[1, 2]]}, 422, "numbers of tokens mean nothing"),
        ({"input": "sum", "input_type": "search_document"}, 422, "input_type: only queries"),
        ({"input": "sum", "task": "retrieval.passage"}, 422, "task: only queries"),
        ({"input": "sum", "task_type": "RETRIEVAL_DOCUMENT"}, 422, "task_type: only queries"),
        ({"input": "sum", "prompt_name": "doc"}, 422, "prompt_name: only queries"),
    ],
}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"), [(path, *case) for path, cases in WRONG.items() for case in cases]
)
def test_a_wrong_request_is_refused_in_one_line(
    client: TestClient, path: str, body: dict, status: int, message: str
) -> None:
    answers = [client.post(path, json=body)]
    if path == "/search" and isinstance(body.get("query"), str) and "nope" not in body:
        answers.append(client.get(path, params=body))
    for response in answers:
        assert response.status_code == status
        assert message in refusal(response)


def test_what_is_no_request_is_refused(client: TestClient) -> None:
    json_type = {"Content-Type": "application/json"}
    assert "not JSON" in refusal(client.post("/search", content="{", headers=json_type))
    for raw in (b"\xff", b"9" * 4301):
        assert "the body is not JSON in UTF-8" in refusal(client.post("/search", content=raw, headers=json_type))
    for body in ('{"query": "\\ud800"}', '{"query": "sum", "dataset": "\\ud800"}', '{"query": "sum", "\\ud800": 1}'):
        assert client.post("/search", content=body, headers=json_type).status_code == 422
    assert "larger than 5000 bytes" in refusal(client.post("/search", content="x" * 5001, headers=json_type))
    chunks = client.post("/search", content=(b"x" * 1000 for _ in range(6)), headers=json_type)  # of no told length
    assert chunks.status_code == 413
    assert "no such path" in refusal(client.get("/nowhere"))
    for method, path, allowed in (
        ("GET", "/events", "POST"),
        ("DELETE", "/search", "GET, POST"),
        ("POST", "/", "GET, HEAD"),
    ):
        wrong = client.request(method, path)
        assert "no such method" in refusal(wrong) and wrong.headers["Allow"] == allowed
    unsaid = client.post("/search", content='{"query": "sum"}')
    assert unsaid.status_code == 415 and "Content-Type: application/json" in refusal(unsaid)
    assert "field required" in refusal(client.post("/search"))
    shouted = client.post("/search", content="[1]", headers={"Content-Type": "application/JSON"})
    assert shouted.status_code == 422


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/search", {"query": None}, "query"),
        ("/search", {"query": ["a", 1]}, "query"),
        ("/v1/embeddings", {"input": 5}, "input"),
        ("/search", {"query": "a", "k": 0}, "k"),
    ],
)
def test_the_wrong_field_is_named_as_the_client_calls_it(
    client: TestClient, path: str, body: dict[str, Any], param: str
) -> None:
    assert client.post(path, json=body).json()["error"]["param"] == param


def test_one_client_is_slowed_down_and_told_for_how_long(released: Path) -> None:
    client, _ = open_client(released / "models/release/static", rate=1.0, max_batch=100)
    with client:
        # 2.5 of the two that there are
        assert client.post("/search", json={"query": ["sum"] * 25}).status_code == 200
        refused = client.get("/search", params={"q": "sum"})
        assert refused.headers["Retry-After"] in ("1", "2")
        assert "wait" in refusal(refused)
        assert client.get("/health").status_code == 200
        assert 'slimtower_refused_total{status="429"} 1' in client.get("/metrics").text


@pytest.fixture(scope="module")
def large(released: Path) -> Iterator[TestClient]:
    """A client of a service that takes bodies of a megabyte, as it does by default."""
    client, _ = open_client(released / "models/release", max_body=2**20)
    with client:
        yield client


def test_a_long_role_is_read_in_no_time(large: TestClient) -> None:
    """Backtracking over it would take minutes, in which this process answers nobody."""
    began = time.perf_counter()
    for role in ("document" * 100_000 + " x", "x" * 800_000, "docs" * 200_000):
        assert large.post("/v1/embeddings", json={"input": "sum", "input_type": role}).status_code in (200, 422)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": [{}] * 60_000}, "input: a text, or a list of texts"),
        ("/search", {"query": [{}] * 60_000}, "query.*: input should be a valid string"),
        ("/search", {"query": "sum"} | {f"a{n}": 1 for n in range(60_000)}, "60001 fields; .* may have query, k"),
        ("/search", {"query": "sum", "system": "x-amz-" * 100_000}, "system: string should have at most 200"),
    ],
)
def test_one_body_makes_one_error(large: TestClient, path: str, body: dict[str, Any], message: str) -> None:
    """Not one for each of its items, which would take a gigabyte of each megabyte."""
    errors: list[int] = []

    def counted(self: RequestValidationError, *arguments: Any, **named: Any) -> None:
        errors.append(len(arguments[0]))
        original_init(self, *arguments, **named)

    original_init = RequestValidationError.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestValidationError, "__init__", counted)
        response = large.post(path, json=body)
    assert response.status_code == 422 and re.search(message, response.json()["error"]["message"])
    assert len(response.content) < 1000 and max(errors, default=0) <= 3
