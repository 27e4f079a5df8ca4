"""Qdrant: its server by URL, or its client's own local mode in a folder."""

import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from slimtower.common.errors import TransientError, UserError
from slimtower.engines.engine import Engine, Graph, Rows, Shape
from slimtower.serving.release import Hit

_NOTE = "slimtower"  # key of a collection's metadata
_METRICS = {"Dot": "inner_product", "Cosine": "cosine", "Euclid": "l2"}
_LOOK_S = 0.5
_LONGEST_S = 6 * 3600.0  # for a graph


class Qdrant(Engine):
    """A client. Points are numbered by row; ids and titles are payload."""

    address = "http(s)://host:6333 (Qdrant), qdrant:<folder> (the local mode of Qdrant's client)"
    packages = frozenset({"qdrant_client", "httpx", "httpcore"})

    def __init__(self, uri: str) -> None:
        from qdrant_client import QdrantClient, models

        self.models: Any = models
        self.local = "://" not in uri
        try:
            self.client: Any = (
                QdrantClient(path=uri)
                if self.local
                else QdrantClient(url=uri, api_key=os.environ.get("QDRANT_API_KEY"), timeout=60)
            )
        except RuntimeError as error:
            if "already accessed" not in str(error):
                raise
            raise TransientError(f"{uri}: another process has this Qdrant folder open; end it and run again") from None

    @classmethod
    def uri_of(cls, to: str) -> str | None:
        if to.startswith(("http://", "https://")):
            return to
        return to.removeprefix("qdrant:") or None if to.startswith("qdrant:") else None

    def names(self, prefix: str) -> list[str]:
        names = [collection.name for collection in self.client.get_collections().collections]
        return [name for name in names if name.startswith(prefix)]

    def create(self, name: str, dim: int) -> None:
        if not self.client.collection_exists(name):
            self.client.create_collection(
                name,
                vectors_config=self.models.VectorParams(size=dim, distance=self.models.Distance.DOT),
                hnsw_config=self.models.HnswConfigDiff(m=0),  # no graph yet
            )

    def count(self, name: str) -> int:
        return int(self.client.count(name, exact=True).count)

    def upsert(self, name: str, rows: Rows) -> None:
        payloads = [{"id": doc, "title": title} for doc, title in zip(rows.ids, rows.titles, strict=True)]
        numbers = list(range(rows.first, rows.first + len(rows.ids)))
        batch = self.models.Batch(ids=numbers, vectors=rows.vectors.tolist(), payloads=payloads)
        self.client.upsert(name, batch, wait=True)

    def build(self, name: str, graph: Graph) -> None:
        hnsw_config = self.models.HnswConfigDiff(m=graph.m, ef_construct=graph.ef_construction)
        self.client.update_collection(name, hnsw_config=hnsw_config)
        green, waiting, states = 0, _LONGEST_S, self.models.CollectionStatus
        while green < 2:  # just after the change nothing has begun yet
            if not self.local:
                time.sleep(_LOOK_S)
            status = self.client.get_collection(name).status
            if status == states.RED:
                raise UserError(f"{name}: Qdrant could not build its graph; its log says why")
            if status == states.GREY:  # restarted meanwhile, it goes on when it is told something
                self.client.update_collection(name, hnsw_config=hnsw_config)
            green, waiting = (green + 1 if status == states.GREEN else 0), waiting - _LOOK_S
            if waiting < 0:
                raise TransientError(
                    f"{name}: Qdrant is still at its graph ({status}) after {_LONGEST_S / 3600:.0f} hours; look at its"
                    " optimisers, and run again"
                )

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        """The best k points of each vector. The local mode compares with all of them, whatever `ef`."""
        params = None if self.local else self.models.SearchParams(hnsw_ef=max(ef, k))
        requests = [
            self.models.QueryRequest(query=vector, limit=k, params=params, with_payload=["id", "doc_id", "title"])
            for vector in vectors.tolist()
        ]
        responses = self.client.query_batch_points(name, requests)
        return [[_hit(point) for point in response.points] for response in responses]

    def vectors(self, name: str, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """The stored vectors of the points whose payload, or whose own number or UUID, is one of these ids."""
        integers = [int(doc) for doc in ids if doc.isascii() and doc.isdecimal() and len(doc) < 19]
        fields: list[Any] = [
            self.models.FieldCondition(key=key, match=self.models.MatchAny(any=values))
            for key in ("id", "doc_id")
            for values in (list(ids), integers)  # a payload may hold either
            if values
        ]
        if point_ids := _numbers(ids):
            fields.append(self.models.HasIdCondition(has_id=point_ids))
        condition, payload = self.models.Filter(should=fields), ["id", "doc_id"]
        points, _ = self.client.scroll(name, condition, limit=2 * len(ids), with_vectors=True, with_payload=payload)
        vectors = {_id(point): np.asarray(point.vector, dtype=np.float32) for point in points}
        return {doc: vectors[doc] for doc in ids if doc in vectors}  # our own numbers are rows, and no ids

    def shape(self, name: str) -> Shape:
        if not self.client.collection_exists(name) and self.target(name) is None:
            raise UserError(f"{name}: no such collection or alias here; look at TO and the name")
        config = self.client.get_collection(name).config.params.vectors
        if not isinstance(config, self.models.VectorParams):
            raise UserError(f"{name}: holds {sorted(config or {})} vectors by name; one unnamed vector is searched")
        metric = str(config.distance.value)
        return Shape(int(config.size), _METRICS.get(metric, metric))

    def note(self, name: str) -> str:
        return str((self.client.get_collection(name).config.metadata or {}).get(_NOTE, ""))

    def keep(self, name: str, note: str) -> None:
        """UserError if the server keeps no metadata."""
        self.client.update_collection(name, metadata={_NOTE: note})
        if self.note(name) != note:
            raise UserError(f"{name}: this Qdrant keeps no metadata of a collection; from 1.16 on it does: update it")

    def target(self, alias: str) -> str | None:
        targets = {entry.alias_name: entry.collection_name for entry in self.client.get_aliases().aliases}
        return targets.get(alias)

    def point(self, alias: str, name: str) -> None:
        create = self.models.CreateAlias(collection_name=name, alias_name=alias)
        actions: list[Any] = [self.models.CreateAliasOperation(create_alias=create)]
        if self.target(alias) is not None:
            deletion = self.models.DeleteAlias(alias_name=alias)
            actions.insert(0, self.models.DeleteAliasOperation(delete_alias=deletion))
        self.client.update_collection_aliases(change_aliases_operations=actions)

    def drop(self, name: str) -> None:
        self.client.delete_collection(name)

    def close(self) -> None:
        self.client.close()


def _id(point: Any) -> str:
    payload = point.payload or {}
    return str(payload.get("id", payload.get("doc_id", point.id)))


def _hit(point: Any) -> Hit:
    return Hit(_id(point), float(point.score), str((point.payload or {}).get("title") or ""))


def _numbers(ids: Sequence[str]) -> list[int | str]:
    """Those ids that can be a point's own: numbers and UUIDs."""
    numbers: list[int | str] = [int(text) for text in ids if text.isdecimal() and int(text) < 2**64]
    for text in ids:
        with suppress(ValueError):
            numbers += [] if text.isdecimal() else [str(uuid.UUID(text))]
    return numbers
