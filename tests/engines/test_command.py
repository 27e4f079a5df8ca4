"""What the commands choose, print and refuse."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from proxy import Proxy

from slimtower.common.errors import TransientError, UserError
from slimtower.engines import command as commands
from slimtower.engines import engines
from slimtower.engines.belonging import EF, tune
from slimtower.engines.contents import QueryBatch
from slimtower.engines.deployment import alias_of, deployed_aliases, prepare
from slimtower.engines.engine import Graph
from slimtower.engines.engines import open_engine
from slimtower.serving.release import Hit

NO_ADDRESS = (
    "http://host:abc",
    "http://host:999999",
    "http://",
    "milvus+http://:19530",
    "postgresql://me:p@host:abc/db",
)
UNKNOWN = ("", "engine", "mysql://host/db", "qdrant:", "s3://bucket/engine.db")


@pytest.mark.parametrize(
    ("to", "message"), [*((to, "no server or no port") for to in NO_ADDRESS), *((to, "give one of") for to in UNKNOWN)]
)
def test_an_address_that_is_none_or_of_an_engine_that_nobody_knows_is_refused(to: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught, open_engine(to):
        pass
    assert not isinstance(caught.value, TransientError)
    for address in ("postgresql:///db", "postgresql://me:p@a:1,b:2/db?target_session_attrs=any", "https://[::1]:6333"):
        engines._check_address(address, address.partition("://")[0])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("to", "kind"),
    [
        ("postgresql://me:Sec@retpw77@127.0.0.1:9/db", UserError),  # after an @ a client looks for the host
        ("postgresql://me:Sec%retpw77@127.0.0.1:1/db", UserError),
        ("postgresql://me:Sec retpw77@127.0.0.1:1/db", UserError),
        ("postgresql://me@127.0.0.1:1/db?password=Sec%retpw77", UserError),
        ("postgresql://me:Secretpw77@127.0.0.1:9/db", TransientError),  # out of reach
    ],
)
def test_no_password_of_an_address_is_repeated(to: str, kind: type[UserError]) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError) as raised, open_engine(to):
        pass
    assert "ret" not in str(raised.value).partition("; ")[0] and "pw77" not in str(raised.value)
    assert type(raised.value) is kind


@pytest.mark.medium
@pytest.mark.parametrize("page", ["<html>Sign in</html>", '{"status": "ok"}'])
def test_what_answers_as_another_server_is_no_engine(page: str) -> None:
    pytest.importorskip("qdrant_client")
    server = Proxy(0)
    server.page = (200, page)
    with pytest.raises(UserError, match="no such engine answers there") as caught, open_engine(server.url):
        pass
    assert not isinstance(caught.value, TransientError)
    server.close()


@pytest.mark.medium
def test_a_qdrant_folder_that_is_open_elsewhere_may_be_tried_again(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    where = f"qdrant:{tmp_path}/engine"
    with open_engine(where), pytest.raises(TransientError, match="another process"), open_engine(where):
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
def test_what_an_engine_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg, milvus = pytest.importorskip("psycopg"), pytest.importorskip("pymilvus").MilvusException
    unexpected = pytest.importorskip("qdrant_client.http.exceptions").UnexpectedResponse
    monkeypatch.setattr(engines, "_engine", lambda to: (Mock(), to))
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
    for refused, error in [(refused, error) for refused, errors in cases.items() for error in errors]:
        with pytest.raises(UserError) as caught, engines.open_engine("postgresql://host/db"):
            raise error
        assert isinstance(caught.value, TransientError) is not refused, error


def test_aliases_are_names_that_every_engine_takes() -> None:
    assert alias_of("slimtower", "api-docs.v2") == "slimtower_api_docs_v2"
    longer = [alias_of("slimtower", "x" * 60 + last) for last in "ab"]
    assert longer[0] != longer[1] and {len(alias) for alias in longer} == {48}
    with pytest.raises(UserError, match="would both be called slimtower_a_b"):
        commands._aliases("slimtower", ["a-b", "a.b"])


RECORD: dict[str, Any] = {"release": "", "manifest": "", "index": "", "teacher": {}, "documents": 1, "m": 4, "ef": 16}
RECORD |= {"student": "2l", "recall": 1.0, "previous": None}
RECORD["settings"] = {"target_recall": 0.9, "m": [4], "ef_construction": 200}


def engine_with(owners: dict[str, tuple[str, str]]) -> Mock:
    """An engine in which each of these aliases answers for a model and a data set."""
    notes = {
        f"{alias}_{'0' * 12}": json.dumps(RECORD | {"model": model, "dataset": dataset})
        for alias, (model, dataset) in owners.items()
    }
    engine = Mock(note=notes.__getitem__, target=lambda alias: f"{alias}_{'0' * 12}")
    engine.names = lambda prefix: [name for name in notes if name.startswith(prefix)]
    return engine


def test_an_alias_of_another_model_or_data_set_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with({"my_search_api": ("my_search", "api")})
    for name, dataset in (("my-search", "api"), ("my", "search_api")):
        assert alias_of(name, dataset) == "my_search_api"
        message = f"my_search_api: answers for 'api' of the registered model 'my_search', and '{dataset}' of '{name}'"
        with pytest.raises(UserError, match=message):
            prepare(engine, Mock(), "digest", name, dataset, "my_search_api", Mock(), Mock())
    monkeypatch.setattr(commands, "open_engine", lambda to: nullcontext(engine))
    monkeypatch.setattr(commands, "read_champion", lambda name: None)
    for datasets, message in ((["api"], "answers for 'api'"), ([], "nothing of my-search is deployed")):
        with pytest.raises(UserError, match=message):
            commands.run_rollback(Path(), "x.db", "my-search", datasets)
    assert not engine.method_calls


LONG = "customer-support-knowledge-search-emea-1"


@pytest.mark.parametrize(("model", "other_model"), [("docs", "docs-beta"), (f"{LONG}a", f"{LONG}b-and-all")])
def test_a_rollback_of_all_leaves_alone_what_another_model_has_there(model: str, other_model: str) -> None:
    owners = [(owner, dataset) for owner in (model, other_model) for dataset in ("faq", "manuals-2026")]
    owners.append((model, "beta-api"))
    engine = engine_with({alias_of(*owner): owner for owner in owners})
    for name in (model, other_model):
        assert deployed_aliases(engine, name) == sorted(alias_of(*owner) for owner in owners if owner[0] == name)


class Rising:
    """Finds a hit more with each ef, up to some number of ten."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        count = min(EF.index(ef) + 4, self.ceiling)
        return [[Hit(str(number), 1.0, "") for number in range(count)]]


def test_the_smallest_ef_that_reaches_the_target_is_chosen() -> None:
    queries = QueryBatch(np.zeros((1, 2)), "dev queries", [frozenset(map(str, range(10)))], 1.0)
    assert tune(Rising(10), "x", queries, 0.6) == (EF[2], 0.6, True)
    assert tune(Rising(7), "x", queries, 0.9) == (EF[3], 0.7, False)  # out of reach: no more than it brings


def test_the_wait_for_qdrants_graph_goes_on_after_a_restart_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    qdrant = pytest.importorskip("slimtower.engines.kinds.qdrant")
    models = pytest.importorskip("qdrant_client").models
    states, updated = models.CollectionStatus, []
    engine: Any = object.__new__(qdrant.Qdrant)
    engine.models, engine.local = models, True
    answers = iter([states.YELLOW, states.GREY, states.YELLOW, states.GREEN, states.GREEN])
    engine.client = SimpleNamespace(
        update_collection=lambda name, **options: updated.append(name),
        get_collection=lambda name: SimpleNamespace(status=next(answers)),
    )
    engine.build("docs", Graph(m=8, ef_construction=32))
    assert updated == ["docs", "docs"] and not list(answers), "once more after it was restarted"
    monkeypatch.setattr(qdrant, "_LONGEST_S", 2.0)
    engine.client.get_collection = lambda name: SimpleNamespace(status=states.YELLOW)
    with pytest.raises(TransientError, match=r"docs: Qdrant is still at its graph"):
        engine.build("docs", Graph(m=8, ef_construction=32))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--encoder-only", "--champion"], "--champion goes with deploying alone"),
        (["--rollback", "--champion"], "--champion goes with deploying alone"),
        (["--rollback", "--student", "4l"], "--student goes with no --rollback"),
    ],
)
def test_words_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        commands.main(["--to", "x.db", *words])
