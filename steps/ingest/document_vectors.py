"""Vectors that an index has already, streamed from files or an engine into the order of the corpus."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import TransientError, UserError, is_refusal, line
from slimtower.common.files import write_json
from slimtower.common.masking import has_unquoted_login, remember
from steps.core.vector_store import new_array
from steps.ingest.locations import locate, one_file
from steps.ingest.params import MilvusCollection, PgvectorTable, QdrantCollection, VectorFiles, VectorSource
from steps.ingest.source import Document

_NAMED = 3  # documents without a vector
PATTERNS = ("*.parquet", "*.npy")
_ROWS, _POINTS = 4096, 512  # of files and Postgres, and of engines that send a page whole, Qdrant in JSON
_TIMEOUT_S = 60
_PACKAGES = {"pgvector": "psycopg[binary] pgvector", "qdrant": "qdrant-client", "milvus": "pymilvus[milvus-lite]"}

VectorBatch = tuple[list[str], np.ndarray]  # ids, vectors (n, dim)


def write_vectors(folder: Path, documents: Sequence[Document], sources: Mapping[str, VectorSource]) -> None:
    """Write `vectors.npy`, float32 `(documents, dim)`, in their order, and `report.json`; without sources only that.

    UserError unless every document has one vector, all of one dimension, finite and not of length 0.
    """
    folder.mkdir()
    rows = {document.doc_id: row for row, document in enumerate(documents)} if sources else {}
    has_vector = np.zeros(len(documents), dtype=bool)
    matrix: np.memmap | None = None
    report: dict[str, Any] = {}
    for dataset, source in sources.items():
        key, other_count = f"ingest.document_vectors.{dataset}", 0
        for ids, vectors in stream_vectors(source, key):
            dim = vectors.shape[1]
            if matrix is None:
                matrix = new_array(folder / "vectors.npy", np.float32, (len(documents), dim))
            if dim != matrix.shape[1]:
                raise UserError(
                    f"{key}: vectors of {dim} dimensions beside others of {matrix.shape[1]}; give those of one model"
                )
            if not np.isfinite(vectors).all():
                raise UserError(f"{key}: a vector is not finite; embed its document again")
            if len(empty := np.flatnonzero(~vectors.any(axis=1))):
                raise UserError(f"{key}: the vector of {ids[empty[0]]!r} is all zeros; embed its document again")
            positions = np.array([rows.get(f"{dataset}/{doc_id}", -1) for doc_id in ids], dtype=np.int64)
            matched = np.flatnonzero(positions >= 0)
            targets, first = np.unique(positions[matched], return_index=True)
            again = np.setdiff1d(np.arange(len(matched)), first)
            if len(repeated := np.append(first[has_vector[targets]], again)):
                raise UserError(f"{key}: {ids[matched[repeated.min()]]!r} has two vectors or more; give each id one")
            matrix[positions[matched]] = vectors[matched]
            has_vector[targets] = True
            other_count += len(ids) - len(matched)
        report[dataset] = {"kind": source.kind, "of_other_ids": other_count}
        if other_count:
            print(
                f"ingest: {dataset}: {other_count:,} vectors of ids that the corpus has not are left out",
                file=sys.stderr,
            )
    if sources and len(missing := np.flatnonzero(~has_vector)):
        named = ", ".join(repr(documents[row].doc_id) for row in missing[:_NAMED])
        raise UserError(
            f"ingest.document_vectors: {len(missing):,} of {len(documents):,} documents have no vector, such as"
            f" {named}; ids are those of the source, without its name in front; add the missing ones to the index, or"
            " take them out of the corpus"
        )
    if matrix is not None:
        matrix.flush()
    write_json(folder / "report.json", report)


def stream_vectors(source: VectorSource, key: str) -> Iterator[VectorBatch]:
    """Ids and vectors `(n, dim)`; UserError if they cannot be read, TransientError if an engine cannot be reached."""
    try:
        yield from _STREAMS[source.kind](source, key)
    except ImportError as error:
        raise UserError(
            f"params.yaml: {key}: kind {source.kind} needs its client ({error}); `pip install {_PACKAGES[source.kind]}`"
        ) from None


def _files(source: VectorFiles, key: str) -> Iterator[VectorBatch]:
    files = [file.path for file in locate(source.path, key=f"{key}.path", patterns=PATTERNS)]
    plain = [path for path in files if path.suffix.lower() == ".npy"]
    if plain and len(plain) < len(files):
        raise UserError(f"params.yaml: {key}.path: {source.path} holds both .npy and .parquet; name one of them")
    if plain and not source.ids:
        raise UserError(f"params.yaml: {key}.ids is empty, but .npy has no ids; name a text file of one id a line")
    try:
        yield from _plain(plain, one_file(source.ids, f"{key}.ids")) if plain else _parquet(files, source, key)
    except ValueError as error:
        raise UserError(
            f"params.yaml: {key}: {source.path}: {error}; vectors are lists of numbers, and ids are UTF-8"
        ) from None


def _plain(files: list[Path], ids: Path) -> Iterator[VectorBatch]:
    with ids.open(encoding="utf-8-sig") as names:
        for path in files:
            try:
                vectors = np.load(path, mmap_mode="r")
            except (OSError, ValueError, EOFError) as error:
                raise UserError(f"{path}: not a .npy file that can be read ({error})") from None
            if not isinstance(vectors, np.ndarray) or vectors.dtype.kind not in "fiu":
                raise UserError(f"{path}: holds no array of numbers; write one with numpy.save")
            if vectors.ndim != 2 or not vectors.shape[1]:
                raise UserError(f"{path}: holds an array of shape {vectors.shape}; give (documents, dimensions)")
            for start in range(0, len(vectors), _ROWS):
                batch = np.asarray(vectors[start : start + _ROWS], dtype=np.float32)
                batch_ids = [line.rstrip("\r\n") for _, line in zip(range(len(batch)), names, strict=False)]
                if len(batch_ids) < len(batch):
                    raise UserError(f"{ids}: has fewer ids than there are vectors; give a line each, in their order")
                yield batch_ids, batch
        if next(names, None) is not None:
            raise UserError(f"{ids}: has more ids than there are vectors; give a line each, in their order")


def _parquet(files: list[Path], source: VectorFiles, key: str) -> Iterator[VectorBatch]:
    columns = [source.id_column, source.vector_column]
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                if missing := [name for name in columns if name not in file.schema_arrow.names]:
                    raise UserError(
                        f"{path}: has no column {missing[0]!r}, but {', '.join(file.schema_arrow.names)}; name them in"
                        f" {key}.id_column and {key}.vector_column"
                    )
                for batch in file.iter_batches(_ROWS, columns=columns):
                    vectors = batch.column(source.vector_column)
                    if len(pc.list_value_length(vectors).unique()) != 1 or vectors.null_count:
                        raise UserError(f"{path}: vectors of {source.vector_column!r} differ in length, or are missing")
                    flat = vectors.flatten().to_numpy(zero_copy_only=False)
                    ids = _ids(batch.column(source.id_column).to_pylist(), key)
                    yield ids, flat.reshape(len(vectors), -1).astype(np.float32)
        except (pa.ArrowException, OSError, KeyError) as error:  # the last for a column that is there twice
            raise UserError(
                f"{path}: not Parquet with a column of vectors ({error}); write or fetch it again"
            ) from None


def _pgvector(source: PgvectorTable, key: str) -> Iterator[VectorBatch]:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import sql

    try:
        address = _variable(name := source.url_variable, f"{key}.url_variable")
        if has_unquoted_login(address):
            raise UserError(
                f"params.yaml: {key}.url_variable: {name} has several @; write those of user and password as %40"
            )
        with psycopg.connect(address) as connection:
            try:
                register_vector(connection)
            except psycopg.ProgrammingError:
                raise UserError(
                    f"params.yaml: {key}: the database that {source.url_variable} names has no pgvector; name the one"
                    " that has the table, or run CREATE EXTENSION vector in it"
                ) from None
            columns = [sql.Identifier(source.id_column), sql.Identifier(source.vector_column)]
            table = sql.Identifier(*source.table.split("."))
            with connection.cursor(name="slimtower") as cursor:  # on the server: rows come some at a time
                cursor.execute(sql.SQL("SELECT {}, {} FROM {}").format(*columns, table))
                while rows := cursor.fetchmany(_ROWS):
                    ids, vectors = zip(*rows, strict=True)
                    yield _ids(ids, key), _stacked(vectors, key)
    except psycopg.OperationalError as error:
        if is_refusal(error):  # a login that fails is one too
            raise UserError(f"params.yaml: {key}: Postgres refused: {line(error)[:300]}; check the address") from None
        raise _unreached(key, error) from None
    except psycopg.Error as error:
        if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
            # its own, of the address, which it repeats with the password
            raise UserError(
                f"params.yaml: {key}.url_variable: {source.url_variable} holds no address that can be read; give"
                " postgresql://user:password@host/database, with special characters as %20"
            ) from None
        raise UserError(f"params.yaml: {key}: Postgres refused: {error}") from None


def _qdrant(source: QdrantCollection, key: str) -> Iterator[VectorBatch]:
    from qdrant_client import QdrantClient
    from qdrant_client.http.exceptions import ApiException

    where: dict[str, Any] = {"url": source.url} if "://" in source.url else {"path": _there(source.url, f"{key}.url")}
    if source.key_variable:
        where["api_key"] = _variable(source.key_variable, f"{key}.key_variable")
    payload: Any = [source.id_field] if source.id_field else False
    vector: Any = [source.vector] if source.vector else True
    try:
        with closing(QdrantClient(**where, timeout=_TIMEOUT_S)) as client:
            offset = None
            while True:
                points, offset = client.scroll(
                    source.collection, limit=_POINTS, offset=offset, with_payload=payload, with_vectors=vector
                )
                if points:
                    field, name = source.id_field, source.vector
                    ids = [(point.payload or {})[field] if field else point.id for point in points]
                    values: list[Any] = [point.vector for point in points]
                    vectors = (
                        [named.get(name) if isinstance(named, dict) else None for named in values] if name else values
                    )
                    yield _ids(ids, key), _stacked(vectors, key)
                if offset is None:
                    return
    except KeyError as error:
        raise UserError(f"params.yaml: {key}: a point has no {error}; check id_field") from None
    except (ApiException, ValueError, RuntimeError, OSError) as error:  # the last three are the local mode's
        if isinstance(error, ApiException) and not is_refusal(error):
            raise _unreached(key, error) from None
        raise UserError(f"params.yaml: {key}: {error}; check url, collection and key") from None


def _milvus(source: MilvusCollection, key: str) -> Iterator[VectorBatch]:
    from pymilvus import MilvusClient, MilvusException

    token = _variable(source.token_variable, f"{key}.token_variable") if source.token_variable else ""
    uri = source.uri if "://" in source.uri else _there(source.uri, f"{key}.uri")
    try:
        with closing(MilvusClient(uri, token=token)) as client:
            client.load_collection(source.collection)
            described = client.describe_collection(source.collection)["fields"]
            primary = next(field["name"] for field in described if field.get("is_primary"))
            fields = [source.id_field, source.vector_field]
            rows = client.query_iterator(source.collection, batch_size=_POINTS, output_fields=fields)
            with closing(rows):
                while batch := rows.next():
                    yield (
                        _ids([row[source.id_field] for row in batch], key),
                        _stacked([row[source.vector_field] for row in batch], key),
                    )
                    if isinstance(last := batch[-1][primary], str) and set(last) & set('"\\'):
                        raise UserError(
                            f"params.yaml: {key}: Milvus's client cannot go on after the key {last!r}, for its quote or"
                            " backslash; write ids and vectors as Parquet, and name that"
                        )
    except KeyError as error:
        raise UserError(f"params.yaml: {key}: an entity has no {error}; check id_field and vector_field") from None
    except MilvusException as error:
        if is_refusal(error):
            raise UserError(
                f"params.yaml: {key}: Milvus refused: {line(error)[:300]}; check uri, collection, fields and token"
            ) from None
        raise _unreached(key, error) from None


def _ids(values: Sequence[Any], key: str) -> list[str]:
    if None in values:
        raise UserError(f"params.yaml: {key}: some documents have no id; give each one, or name another field of ids")
    return [str(value) for value in values]


def _stacked(vectors: Sequence[Any], key: str) -> np.ndarray:
    try:
        arrays = (vector.to_numpy() if hasattr(vector, "to_numpy") else vector for vector in vectors)  # of pgvector
        matrix = np.array([np.asarray(vector, dtype=np.float32) for vector in arrays])
    except (ValueError, TypeError):
        raise UserError(f"params.yaml: {key}: some documents have no vector, or one of another dimension") from None
    if matrix.ndim != 2:
        raise UserError(f"params.yaml: {key}: no vectors of one dimension each; name a field that holds them")
    return matrix


def _there(path: str, key: str) -> str:
    """A local path; its client would make an empty one."""
    if not Path(path).exists():
        raise UserError(f"params.yaml: {key}: {path}: nothing is there; a server's address begins with http://")
    return path


def _variable(name: str, key: str) -> str:
    if not (value := os.environ.get(name, "")):
        raise UserError(f"params.yaml: {key}: {name} is not set in the environment")
    if "://" not in value:
        remember(value)
    return value


def _unreached(key: str, error: Exception) -> TransientError:
    return TransientError(
        f"params.yaml: {key}: {type(error).__name__}: {error}; check address and name, then run again"
    )


_STREAMS: dict[str, Callable[[Any, str], Iterator[VectorBatch]]] = {
    "files": _files, "pgvector": _pgvector, "qdrant": _qdrant, "milvus": _milvus,
}  # fmt: skip
