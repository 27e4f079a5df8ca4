"""What the commands choose, print and refuse."""

import json
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from slimtower.common.errors import TransientError, UserError
from slimtower.engines import engines
from slimtower.engines import run as commands
from slimtower.engines.belonging import EF, tune
from slimtower.engines.contents import QueryBatch
from slimtower.engines.deployment import alias_of, check_owner, deployed_aliases, prepare
from slimtower.engines.engine import Graph
from slimtower.engines.engines import open_engine
from slimtower.engines.refusals import is_refusal
from slimtower.serving.release import Hit


@pytest.mark.parametrize("to", ["", "engine", "mysql://host/db", "qdrant:", "s3://bucket/engine.db"])
def test_an_engine_that_nobody_knows_is_refused(to: str) -> None:
    with pytest.raises(UserError, match=r"give one of .*Milvus Lite.*postgresql://"), open_engine(to):
        pass


@pytest.mark.parametrize(
    "to", ["http://host:abc", "http://host:999999", "http://", "milvus+http://:19530", "postgresql://me:p@host:abc/db"]
)
def test_an_address_that_is_none_is_refused(to: str) -> None:
    with pytest.raises(UserError, match=r"TO is .* no server or no port") as caught, open_engine(to):
        pass
    assert not isinstance(caught.value, TransientError)
    for known in ("postgresql:///db", "postgresql://me:p@a:1,b:2/db?target_session_attrs=any", "https://[::1]:6333"):
        engines._check_address(known, known.partition("://")[0])


def test_an_address_with_several_ats_is_refused_before_a_client_shows_the_rest_of_the_password() -> None:
    with (
        pytest.raises(UserError, match="several @") as caught,
        open_engine("postgresql://me:abc@hush-hush@127.0.0.1:9/db"),
    ):
        pass
    assert "hush" not in str(caught.value)


@pytest.mark.medium
@pytest.mark.parametrize(
    "to",
    [
        "postgresql://me:Sec%retpw77@127.0.0.1:1/db",
        "postgresql://me:Sec retpw77@127.0.0.1:1/db",
        "postgresql://me@127.0.0.1:1/db?password=Sec%retpw77",
    ],
)
def test_an_address_that_libpq_cannot_read_is_not_repeated_with_its_password(to: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError, match="%20") as raised, open_engine(to):
        pass
    assert "ret" not in str(raised.value).partition("; ")[0] and "pw77" not in str(raised.value)


@pytest.mark.medium
@pytest.mark.parametrize("page", [b"<html>Sign in</html>", b'{"status": "ok"}'])
def test_what_answers_as_another_server_is_no_engine(page: bytes) -> None:
    pytest.importorskip("qdrant_client")

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    to = f"http://127.0.0.1:{server.server_port}"
    with (
        pytest.raises(UserError, match=f"{to}: no such engine answers there .*; look at TO") as caught,
        open_engine(to),
    ):
        pass
    assert not isinstance(caught.value, TransientError)
    server.shutdown()
    server.server_close()


@pytest.mark.medium
def test_an_engine_out_of_reach_may_be_tried_again_and_no_password_is_told() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(TransientError) as caught, open_engine("postgresql://me:hush-hush@127.0.0.1:9/db"):
        pass
    assert "hush-hush" not in str(caught.value) and "run it again" in str(caught.value)


@pytest.mark.medium
def test_a_qdrant_folder_that_is_open_elsewhere_may_be_tried_again(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    where = f"qdrant:{tmp_path}/engine"
    with (
        open_engine(where),
        pytest.raises(TransientError, match="another process has this Qdrant"),
        open_engine(where),
    ):
        pass


def grpc_error(name: str) -> Exception:
    """What pymilvus makes of an error of gRPC while it connects."""
    import grpc
    from pymilvus import MilvusException

    class Failed(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode[name]

    error = MilvusException(2, "Fail connecting to server on host:19530, illegal connection params")
    error.__cause__ = Failed()
    return error


@pytest.mark.medium
@pytest.mark.parametrize("refused", [True, False])
def test_what_an_engine_refuses_is_not_tried_again(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg, milvus = pytest.importorskip("psycopg"), pytest.importorskip("pymilvus").MilvusException
    unexpected = pytest.importorskip("qdrant_client.http.exceptions").UnexpectedResponse
    monkeypatch.setattr(engines, "_engine", lambda to: (Mock(refuses=is_refusal), to))
    cases = {
        True: [
            psycopg.OperationalError('connection failed: FATAL:  password authentication failed for user "me"'),
            psycopg.OperationalError('connection failed: FATAL:  database "none" does not exist'),
            psycopg.errors.InsufficientPrivilege('permission denied to create extension "vector"'),
            unexpected(401, "Unauthorized", b"", None),
            unexpected(400, "Bad Request", b"", None),
            milvus(1100, "vector dimension mismatch"),
            grpc_error("UNAUTHENTICATED"),
        ],
        False: [
            psycopg.OperationalError("server closed the connection unexpectedly"),
            psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
            psycopg.errors.UniqueViolation("of two that create a table at once"),
            unexpected(503, "Service Unavailable", b"", None),
            unexpected(429, "Too Many Requests", b"", None),
            milvus(101, "collection not loaded", retriable=True),
            grpc_error("UNAVAILABLE"),
        ],
    }
    for error in cases[refused]:
        with pytest.raises(UserError) as caught, engines.open_engine("postgresql://host/db"):
            raise error
        assert isinstance(caught.value, TransientError) is not refused, error


def test_aliases_are_names_that_every_engine_takes() -> None:
    assert alias_of("slimtower", "api-docs.v2") == "slimtower_api_docs_v2"
    longer = [alias_of("slimtower", "x" * 60 + last) for last in "ab"]
    assert longer[0] != longer[1] and {len(alias) for alias in longer} == {48}
    with pytest.raises(UserError, match="would both be called slimtower_a_b"):
        commands._aliases("slimtower", ["a-b", "a.b"])


RECORD = {"release": "", "manifest": "", "index": "", "teacher": {}, "documents": 1, "m": 4, "ef": 16}
RECORD |= {"student": "2l", "recall": 1.0, "previous": None}


def test_an_alias_of_another_model_or_data_set_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"model": "my_search", "dataset": "api"}
    engine = Mock(target=lambda alias: f"{alias}_{'0' * 12}", note=lambda name: json.dumps(RECORD | theirs))
    engine.names = lambda prefix: [f"my_search_api_{'0' * 12}"]
    for name, dataset in (("my-search", "api"), ("my", "search_api")):
        assert alias_of(name, dataset) == "my_search_api"
        told = f"my_search_api: answers for 'api' of the registered model 'my_search', and '{dataset}' of '{name}'"
        with pytest.raises(UserError, match=told):
            prepare(engine, Mock(), "digest", name, dataset, "my_search_api", Mock(), Mock())
    monkeypatch.setattr(commands, "open_engine", lambda to: nullcontext(engine))
    monkeypatch.setattr(commands, "read_champion", lambda name: None)
    for datasets, told in ((["api"], "answers for 'api'"), ([], "nothing of my-search is deployed")):
        with pytest.raises(UserError, match=told):
            commands.run_rollback(Path(), "x.db", "my-search", datasets)
    assert not engine.method_calls


def test_a_record_of_before_there_were_owners_is_anybodys() -> None:
    for known in ({}, {"dataset": "api"}, {"model": "my-search", "dataset": "api"}):
        engine = Mock(note=lambda name, known=known: json.dumps(RECORD | known))
        check_owner(engine, "my_search_api", "my-search", "api")
    engine.target = lambda alias: None
    check_owner(engine, "my_search_api", "another", "api")


def test_a_rollback_of_all_leaves_alone_what_another_registered_model_has_there() -> None:
    notes = {
        f"{alias}_{'0' * 12}": json.dumps(RECORD | dataset)
        for alias, dataset in {
            "docs_api": {"dataset": "api"},
            "docs_beta_api": {"dataset": "api"},  # of the model docs-beta
            "docs_beta_faq": {"dataset": "beta-faq"},
            "docs_old": {},
        }.items()
    }
    engine = Mock(note=notes.__getitem__, target=lambda alias: f"{alias}_{'0' * 12}")
    engine.names = lambda prefix: [name for name in notes if name.startswith(prefix)]
    assert deployed_aliases(engine, "docs") == ["docs_api", "docs_beta_faq", "docs_old"]


def test_long_names_are_rolled_back_in_all_data_sets() -> None:
    name, longer = "customer-support-knowledge-search-emea-1a", "customer-support-knowledge-search-emea-1b-and-all"
    notes = {}
    for model in (name, longer):
        for dataset in ("faq", "manuals-2026"):
            record = RECORD | {"model": model, "dataset": dataset}
            notes[f"{alias_of(model, dataset)}_{'0' * 12}"] = json.dumps(record)
    engine = Mock(note=notes.__getitem__, target=lambda alias: f"{alias}_{'0' * 12}")
    engine.names = lambda prefix: [each for each in notes if each.startswith(prefix)]
    for model in (name, longer):
        assert deployed_aliases(engine, model) == sorted(
            alias_of(model, dataset) for dataset in ("faq", "manuals-2026")
        )


class Rising:
    """Finds a hit more with each ef, up to some number of ten."""

    def __init__(self, most: int) -> None:
        self.most = most

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        found = min(EF.index(ef) + 4, self.most)
        return [[Hit(str(number), 1.0, "") for number in range(found)]]


def test_the_smallest_ef_that_reaches_the_target_is_chosen() -> None:
    asked = QueryBatch(np.zeros((1, 2)), "dev queries", [frozenset(map(str, range(10)))], 1.0)
    assert tune(Rising(10), "x", asked, 0.6) == (EF[2], 0.6, True)
    assert tune(Rising(7), "x", asked, 0.9) == (EF[3], 0.7, False)  # out of reach: no more than it brings


def test_the_wait_for_qdrants_graph_goes_on_after_a_restart_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    qdrant = pytest.importorskip("slimtower.engines.kinds.qdrant")
    models = pytest.importorskip("qdrant_client").models
    states, told = models.CollectionStatus, []
    engine: Any = object.__new__(qdrant.Qdrant)
    engine.models, engine.local = models, True
    answers = iter([states.YELLOW, states.GREY, states.YELLOW, states.GREEN, states.GREEN])
    engine.client = SimpleNamespace(
        update_collection=lambda name, **given: told.append(name),
        get_collection=lambda name: SimpleNamespace(status=next(answers)),
    )
    engine.build("docs", Graph(m=8, ef_construction=32))
    assert told == ["docs", "docs"] and not list(answers), "once more after it was restarted"
    monkeypatch.setattr(qdrant, "_LONGEST_S", 2.0)
    engine.client.get_collection = lambda name: SimpleNamespace(status=states.YELLOW)
    with pytest.raises(TransientError, match=r"docs: Qdrant is still at its graph"):
        engine.build("docs", Graph(m=8, ef_construction=32))
