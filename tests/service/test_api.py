"""What the service answers."""

import base64
import gc
import json
import logging
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from serve_fakes import open_client, refusal
from starlette.testclient import TestClient

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.service.corpus import Corpus
from slimtower.service.service import Service
from slimtower.service.systems import Baselines, Origin, Served, Serving, teacher_base
from slimtower.service.telemetry import JsonLines
from slimtower.serving.release import load_release
from steps.core.tables import read_table
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium

QUERY = "how to sum the axis"


@pytest.fixture(scope="module")
def opened(released: Path) -> Iterator[tuple[TestClient, Service]]:
    client, service = open_client(released / "models/release", baselines=True)
    with client:
        yield client, service


@pytest.fixture
def client(opened: tuple[TestClient, Service]) -> TestClient:
    return opened[0]


def test_get_and_post_take_the_same_names(client: TestClient) -> None:
    both = [client.get("/search", params={name: QUERY}).json() for name in ("query", "q")]
    both += [client.post("/search", json={name: QUERY}).json() for name in ("query", "q")]
    assert len({json.dumps([hit["id"] for hit in answer["results"][0]["hits"]]) for answer in both}) == 1
    for response in (
        client.get("/search", params={"q": QUERY, "query": QUERY}),
        client.post("/search", json={"q": QUERY, "query": QUERY}),
    ):
        assert response.status_code == 422 and refusal(response).startswith("q: ")
    for none in (client.get("/search"), client.post("/search", json={})):
        assert none.status_code == 422 and refusal(none) == "query: field required"
    spec = client.get("/openapi.json").json()
    assert "q" not in [field["name"] for field in spec["paths"]["/search"]["get"]["parameters"]]
    assert "query" in spec["components"]["schemas"]["SearchRequest"]["properties"]


@pytest.mark.parametrize("system", ["2l", "static", "teacher", "bm25"])
def test_the_medians_are_of_the_last_calls_and_none_is_cold(client: TestClient, system: str) -> None:
    times = []
    for _ in range(25):
        answer = client.post("/search", json={"query": QUERY, "system": system, "dataset": "one"}).json()
        times.append((answer["ms"]["encode"] + answer["ms"]["search"], answer["ms"]["encode"]))
        assert answer["recent"]["calls"] >= 5  # loading ended with calls that nobody waited for
    assert answer["recent"] == {
        "calls": 20,
        "total": pytest.approx(np.median([total for total, _ in times[-20:]]), abs=2e-4),
        "encode": pytest.approx(np.median([encode for _, encode in times[-20:]]), abs=2e-4),
    }
    assert client.post("/search", json={"query": [QUERY, "sum"], "system": system}).json()["recent"] is None
    (facts,) = [row for row in client.get("/systems").json()["systems"] if row["system"] == system]
    assert facts["recent"]["calls"] == 20


def test_a_student_and_a_teacher_with_bm25_answer_with_fused_hits(hybrid: Path) -> None:
    release = load_release(hybrid / "models/release/static")
    texts = [QUERY, "string window 44"]
    client, _ = open_client(release.folder, baselines=True)
    with client:
        names = [system["system"] for system in client.get("/systems").json()["systems"]]
        body = {"query": texts, "k": 7, "dataset": "two"}
        answers = [client.post("/search", json=body | {"system": name}).json() for name in ("", "teacher+bm25")]
    assert names == ["static", "teacher+bm25", "teacher", "bm25"]
    by_teacher = encode(load_tower(hybrid / "models/teach/dense/tower"), texts, "query")
    for answer, vectors in zip(answers, (release.encode(texts), by_teacher), strict=True):
        hit_ids = [[hit["id"] for hit in result["hits"]] for result in answer["results"]]
        assert hit_ids == [[hit.id for hit in hits] for hits in release.answers("two", texts, vectors, 7)]


def test_a_teacher_goes_by_the_name_of_its_base(tmp_path: Path) -> None:
    names = {'{"base": "all-MiniLM-L6-v2"}': "all-MiniLM-L6-v2", '{"base": "/models/own-teacher"}': "own-teacher"}
    assert teacher_base(tmp_path / "tower") == ""
    for report, name in (names | {'{"base": 3}': "", "no JSON": ""}).items():
        (tmp_path / "report.json").write_text(report)
        assert teacher_base(tmp_path / "tower") == name


@pytest.mark.parametrize("system", ["static", "2l"])
def test_a_query_gets_what_its_release_finds_and_the_name_of_that_release(
    client: TestClient, released: Path, system: str
) -> None:
    release = load_release(released / "models/release" / system)
    body = {"query": [QUERY, "string window"], "k": 3, "dataset": "two", "system": system}
    answer = client.post("/search", json=body).json()
    for query, result in zip(body["query"], answer["results"], strict=True):
        hits = release.query(query, 3, "two")
        assert [(hit["rank"], hit["id"], hit["title"]) for hit in result["hits"]] == [
            (rank, hit.id, hit.title) for rank, hit in enumerate(hits, start=1)
        ]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert result["logged"] is False
        assert "Computes the" in result["hits"][0]["snippet"]
    assert answer["system"] == system
    assert answer["release"] == {"student": system, "manifest": release.manifest.checksum, "version": ""}
    assert answer["ms"]["encode"] > 0 and answer["ms"]["search"] > 0
    (alone,) = client.get("/search", params=body | {"query": QUERY}).json()["results"]
    assert alone["hits"] == answer["results"][0]["hits"]


def test_who_asks_for_the_head_alone_learns_whether_the_service_is_up(client: TestClient) -> None:
    for path in ("/", "/health", "/health/live"):
        head, whole = client.head(path), client.get(path)
        assert head.status_code == whole.status_code == 200
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert client.head("/search", params={"q": "sum"}).status_code == 405, "it would be logged, and seen by nobody"


def test_what_systems_tells_of_a_release_is_computed_once_and_keeps_no_release(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = open_client(released / "models/release/static")
    calls: list[Any] = []

    def examples(serving: Serving) -> dict[str, list[str]]:
        calls.append(weakref.ref(serving))
        time.sleep(0.1)
        return {}

    monkeypatch.setattr(Service, "examples", lambda self, serving: examples(serving))
    with client:
        with ThreadPoolExecutor(8) as asking:
            answers = list(asking.map(lambda _: client.get("/systems").status_code, range(8)))
        assert answers == [200] * 8 and len(calls) == 1
        current = service.watcher.current
        assert current is not None
        service.watcher.current = Serving(current.students, current.default)
        del current
        gc.collect()
        assert calls[0]() is None, "the release before is not kept for what was told of it"


def test_students_answer_while_baselines_are_busy(opened: tuple[TestClient, Service]) -> None:
    client, service = opened
    done = threading.Event()
    busy = [service.baseline_pool.submit(done.wait, 60) for _ in range(3)]
    with ThreadPoolExecutor(4) as asking:
        slow = [asking.submit(client.get, "/search", params={"q": "sum", "system": "bm25"}) for _ in range(3)]
        try:
            student = asking.submit(client.get, "/search", params={"q": "sum", "system": "static"}).result(20)
            assert student.status_code == 200 and not any(answer.done() for answer in slow)
        finally:
            done.set()
        assert [answer.result(60).status_code for answer in slow] == [200] * 3
    assert all(future.result() for future in busy)


def test_a_field_that_asks_for_no_documents_changes_nothing(client: TestClient) -> None:
    plain = client.post("/v1/embeddings", json={"input": "sum"}).json()
    assert plain["model"] == plain["release"]["student"] == "2l"
    for field in ({"input_type": "search_query"}, {"task": "find passages that answer the question"}, {"task": 1}):
        assert client.post("/v1/embeddings", json={"input": "sum", "model": "2l"} | field).json() == plain


def test_bm25_answers_beside_the_students_and_documents_are_shown_whole(client: TestClient) -> None:
    systems = client.get("/systems").json()
    layers = {system["system"]: system.get("layers") for system in systems["systems"]}
    assert layers == {"2l": 2, "static": 0, "teacher": None, "bm25": None}
    answer = client.post("/search", json={"query": "matrix Number 17", "system": "bm25", "dataset": "one"}).json()
    top = answer["results"][0]["hits"][0]
    assert top["id"] == "one/17"
    document = client.get("/document", params={"id": "one/17"}).json()
    assert (document["title"], document["content"][-24:]) == (top["title"], " Number 17 is returned.".rjust(24, "."))
    assert client.get("/document", params={"id": "one/999"}).status_code == 404


@pytest.mark.slow
def test_a_teacher_behind_an_api_is_no_baseline(tmp_path: Path, tiny_tower: Path, released: Path) -> None:
    """It would be paid for each query; beside it one that computes here may be the index's teacher."""
    rented = tmp_path / "models/teach/rented/tower"
    routes = {"types": {"r": "steps.endpoint.module.Endpoint"}, "structure": {"query": ["r"], "document": ["r"]}}
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.router.Router"}
    write_json(rented / "modules.json", [module])
    write_json(rented / "router_config.json", routes)
    write_json(rented / "config_sentence_transformers.json", {"prompts": {}})
    baselines = Baselines(tmp_path, Corpus("", 1), enabled=True)
    serving = Serving({"2l": Served("2l", load_release(released / "models/release/2l"), Origin(""), "")}, "2l")
    assert baselines.names(serving) == []
    with pytest.raises(UserError, match="or that is behind an API"):
        baselines._load({})
    (tmp_path / "models/teach/half/tower").mkdir(parents=True)
    assert baselines.names(serving) == []
    shutil.copytree(tiny_tower, tmp_path / "models/teach/dense/tower")
    assert baselines.names(serving) == ["teacher"]
    assert baselines._load(asdict(fingerprint(tiny_tower)))[0] is not None

    retrained = load_tower(tiny_tower)  # `dvc checkout` of another version, of which only the weights differ
    with torch.no_grad():
        next(retrained.parameters()).add_(1.0)
    retrained.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    weights = tmp_path / "models/teach/dense/tower/model.safetensors"
    weights.unlink()
    shutil.copyfile(tmp_path / "other/model.safetensors", weights)
    with pytest.raises(UserError, match="none of models/teach is the one"):
        baselines._load(asdict(fingerprint(tiny_tower)))
    weights.unlink()  # met in the midst of a checkout
    with pytest.raises(UserError, match="none of models/teach is the one"):
        baselines._load(asdict(fingerprint(tiny_tower)))


def test_the_teacher_answers_from_the_index_that_its_students_have(client: TestClient, released: Path) -> None:
    answer = client.post("/search", json={"query": QUERY, "system": "teacher", "dataset": "one", "k": 5}).json()
    vectors = encode(load_tower(released / "models/teach/dense/tower"), [QUERY], "query")
    hits = load_release(released / "models/release/2l").hits("one", vectors, 5)[0]
    assert [hit["id"] for hit in answer["results"][0]["hits"]] == [hit.id for hit in hits]


def test_health_and_metrics_tell_which_releases_answer(client: TestClient, released: Path) -> None:
    state = client.get("/health").json()
    assert state["ready"] is True and state["failing"] == []
    assert [release["system"] for release in state["releases"]] == ["2l", "static"]
    assert client.get("/health/live").json() == {"live": True}
    client.post("/search", json={"query": QUERY, "system": "static"})
    lines = client.get("/metrics").text.splitlines()
    checksum = load_release(released / "models/release/static").manifest.checksum
    assert f'slimtower_release_info{{manifest="{checksum}",student="static",system="static",version=""}} 1.0' in lines
    assert "slimtower_ready 1.0" in lines
    counts = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert counts['slimtower_requests_total{path="/search",status="200"}'] >= 1
    encoded = counts['slimtower_encode_seconds_count{system="static"}']
    assert counts['slimtower_encode_seconds_bucket{le="+Inf",system="static"}'] == encoded >= 1


def test_log_lines_hold_no_query_unless_asked(released: Path) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(JsonLines().format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("slimtower.serve")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for with_queries in (False, True):
            client, _ = open_client(released / "models/release/static", log_queries=with_queries)
            with client:
                client.post("/search", json={"query": "secret words"})
                client.get("/search", params={"q": "secret words"})
                client.post("/v1/embeddings", json={"input": "secret words"})
                client.get("/secret words")
            rows = [json.loads(line) for line in lines]
            requests = [row for row in rows if row["event"] == "request"]
            assert [row["status"] for row in requests] == [200, 200, 200, 404]
            assert {"request", "path", "ms", "manifest", "queries"} <= requests[0].keys()
            assert sum("secret" in line for line in lines) == (3 if with_queries else 0)
            lines.clear()
    finally:
        logger.removeHandler(handler)


def test_metrics_are_told_when_all_threads_are_busy_and_computed_once_a_second(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = open_client(released / "models/release/static")
    done, metrics_text = threading.Event(), Mock(side_effect=service.metrics.text)
    monkeypatch.setattr(service.metrics, "text", metrics_text)
    with client:
        busy = [service.pool.submit(done.wait, 60) for _ in range(service.settings.threads)]
        try:
            with ThreadPoolExecutor(1) as asking:
                texts = [asking.submit(client.get, "/metrics").result(20).text for _ in range(5)]
        finally:
            done.set()
        assert all("slimtower_ready 1.0" in text for text in texts) and all(future.result() for future in busy)
        assert metrics_text.call_count < 3


def test_the_page_asks_nobody_else_and_runs_no_script_but_its_own(client: TestClient) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert "innerHTML" not in page.text and "document.write" not in page.text
        assert "//" not in page.text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")
        assert page.text.count("<style>") == policy.count("style-src 'sha256-")
        assert page.text.count("<script>") == policy.count("script-src 'sha256-")
    assert "/v1/embeddings" in client.get("/docs").text
    assert "SearchRequest" in client.get("/openapi.json").text


@pytest.fixture
def project(released: Path, tmp_path: Path) -> Path:
    """A run without teachers, whose reports may be written."""
    ignored = shutil.ignore_patterns("cache", "teach")
    folder = Path(shutil.copytree(released, tmp_path / "project", ignore=ignored))
    (folder / "reports").mkdir(exist_ok=True)
    return folder


def test_the_report_of_the_run_is_shown_and_no_other_file(project: Path, tmp_path: Path) -> None:
    (project / "reports/metrics.json").write_text('{"choice": {"student": "2l"}, "releases": {}}')
    client, _ = open_client(project / "models/release", baselines=True)
    with client:
        assert client.get("/systems").json()["report"] is False
        assert client.get("/report").status_code == 404
        (project / "reports/report.html").write_text("<p style='color: red'>figures</p>")
        assert client.get("/systems").json()["report"] is True
        answer = client.get("/report", params={"path": "metrics.json"})
        assert "figures" in answer.text and "script-src 'none'" in answer.headers["Content-Security-Policy"]
        for path in ("/report/../metrics.json", "/report/metrics.json", "/report/%2e%2e/metrics.json"):
            assert client.get(path).status_code == 404
    elsewhere = Path(shutil.copytree(project / "models/release", tmp_path / "elsewhere"))
    for folder, baselines in ((project / "models/release", False), (elsewhere, True)):
        client, _ = open_client(folder, baselines=baselines)
        with client:
            assert client.get("/systems").json()["report"] is False and client.get("/report").status_code == 404


def test_queries_of_the_run_on_which_teacher_and_students_agree_are_offered(project: Path) -> None:
    queries = [row for row in read_table(project / "data/ingest", "queries").to_pylist() if row["dataset"] == "one"]
    rows = [
        {"query_id": query["query_id"], "dataset": "one", "model": model, "split": split, "measure": measure,
         "value": value}
        for at, query in enumerate(queries[:4])
        for model, value in (("teacher", 1.0), ("2l", 1.0 if at < 2 else 0.5), ("bm25", 0.0))
        for split, measure in (("dev", "RR@10"), ("dev", "R@5"))
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), project / "reports/per_query.parquet")
    for changes, offered in (({}, {"one": {query["text"] for query in queries[:2]}}), ({"baselines": False}, {})):
        client, _ = open_client(project / "models/release", **({"baselines": True} | changes))
        with client:
            examples = client.get("/systems").json()["examples"]
        assert {dataset: set(texts) for dataset, texts in examples.items()} == offered


@pytest.fixture(scope="module")
def openai_client(opened: tuple[TestClient, Service]) -> Iterator[Any]:
    """OpenAI's own client, whose requests go to the service and nowhere else."""
    openai = pytest.importorskip("openai")
    yield openai.OpenAI(base_url="http://testserver/v1", api_key="any", http_client=opened[0], max_retries=0)


def test_the_encoder_is_a_drop_in_for_openais_client(openai_client: Any, released: Path) -> None:
    release = load_release(released / "models/release/2l")
    expected = release.encode([QUERY])[0]
    for changes in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 32, "user": "me"}):
        answer = openai_client.embeddings.create(model="2l", input=QUERY, **changes)
        embedding = answer.data[0].embedding
        vector = (
            np.frombuffer(base64.b64decode(embedding), "<f4") if isinstance(embedding, str) else np.array(embedding)
        )
        np.testing.assert_allclose(vector, expected, atol=1e-6)
        assert answer.model == "2l" and answer.usage.total_tokens == 7 and answer.data[0].index == 0
    batch = openai_client.embeddings.create(model="text-embedding-x", input=[QUERY, "string"], encoding_format="float")
    assert batch.model == "text-embedding-x" and [row.index for row in batch.data] == [0, 1]
    assert "2l" in [model.id for model in openai_client.models.list()]


def test_a_matryoshka_student_answers_in_its_dimensions(opened: tuple[TestClient, Service], openai_client: Any) -> None:
    served = opened[1].serving().student("2l")
    vector = served.release.encode([QUERY])[0]
    served.release.manifest = served.release.manifest.model_copy(update={"dims": [8, 16]})
    try:
        for dim in (8, 16, 32):
            truncated = openai_client.embeddings.create(model="2l", input=QUERY, dimensions=dim).data[0].embedding
            np.testing.assert_allclose(truncated, vector[:dim] / np.linalg.norm(vector[:dim]), atol=1e-6)
    finally:
        served.release.manifest = served.release.manifest.model_copy(update={"dims": []})
