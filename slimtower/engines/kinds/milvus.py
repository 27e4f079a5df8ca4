"""Milvus: its server by URI, or Milvus Lite in a file, which one process opens at a time."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import UserError
from slimtower.engines.engine import Engine, Graph, Rows, Shape, one_field
from slimtower.serving.release import Hit

_NOTE = "slimtower"  # key of a collection's properties
_LONGEST = 65535  # bytes of a VARCHAR
_EF, _NPROBE = ("", "FLAT", "HNSW", "AUTOINDEX"), ("IVF_FLAT", "IVF_SQ8", "IVF_PQ")
_KNOBS = dict.fromkeys(_EF, "ef") | dict.fromkeys(_NPROBE, "nprobe")
_METRICS = {"IP": "inner_product", "COSINE": "cosine", "L2": "l2"}


class Milvus(Engine):
    """A client. The id is the primary key."""

    address = "milvus+http(s)://host:19530 (Milvus), a file <name>.db (Milvus Lite)"
    packages = frozenset({"pymilvus", "milvus_lite", "grpc"})

    def __init__(self, uri: str) -> None:
        from pymilvus import DataType, MilvusClient

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what fails is raised as well
        self.types = DataType
        self.file = "" if "://" in uri else uri
        if self.file:
            Path(uri).parent.mkdir(parents=True, exist_ok=True)
        self.client: Any = MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
        self._loaded: set[str] = set()
        self._field_names: dict[str, tuple[str, str, str, str, str]] = {}

    @classmethod
    def uri_of(cls, to: str) -> str | None:
        if to.startswith(("milvus+http://", "milvus+https://")):
            return to.removeprefix("milvus+")
        return to if to.endswith(".db") and "://" not in to else None

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.client.list_collections() if name.startswith(prefix)]

    def create(self, name: str, dim: int) -> None:
        """With an index, though it is scanned: else it could not be loaded and counted."""
        if self.client.has_collection(name):
            self._complete(name)
            return
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", self.types.VARCHAR, is_primary=True, max_length=_LONGEST)
        schema.add_field("title", self.types.VARCHAR, max_length=_LONGEST)
        schema.add_field("vector", self.types.FLOAT_VECTOR, dim=dim)
        self.client.create_collection(name, schema=schema, index_params=self._index("FLAT", {}))

    def count(self, name: str) -> int:
        self._complete(name)
        self._load(name)
        rows = self.client.query(name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    def upsert(self, name: str, rows: Rows) -> None:
        entities = [
            {"id": doc, "title": title.encode()[:_LONGEST].decode(errors="ignore"), "vector": vector}
            for doc, title, vector in zip(rows.ids, rows.titles, rows.vectors, strict=True)
        ]
        self.client.upsert(name, entities)

    def build(self, name: str, graph: Graph) -> None:
        self.client.flush(name)
        self.client.release_collection(name)
        for index in self.client.list_indexes(name):
            self.client.drop_index(name, index)
        settings = {"M": graph.m, "efConstruction": graph.ef_construction}
        self.client.create_index(name, self._index("HNSW", settings))
        self.client.load_collection(name)
        self._loaded.add(name)

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        self._load(name)
        doc, title, vector, metric, kind = self._fields(name)
        knob = self._knob(name, kind)
        results = self.client.search(
            name,
            data=vectors.tolist(),
            anns_field=vector,
            limit=k,
            output_fields=[doc, *([title] if title else [])],
            search_params={"metric_type": metric, "params": {knob: max(ef, k) if knob == "ef" else ef}},
        )
        return [
            [
                Hit(str(hit["entity"].get(doc, hit.get(doc))), float(hit["distance"]), hit["entity"].get(title) or "")
                for hit in hits
            ]
            for hits in results
        ]

    def vectors(self, name: str, ids: Sequence[str]) -> dict[str, np.ndarray]:
        self._load(name)
        doc, _, vector, *_ = self._fields(name)
        fields = self.client.describe_collection(name)["fields"]
        text = any(field["name"] == doc and field["type"] == self.types.VARCHAR for field in fields)
        keys = list(ids) if text else [int(doc_id) for doc_id in ids if doc_id.isdecimal()]
        condition = f"{doc} in {json.dumps(keys, ensure_ascii=False)}"
        rows = self.client.query(name, filter=condition, output_fields=[doc, vector])
        return {str(row[doc]): np.asarray(row[vector], dtype=np.float32) for row in rows}

    def shape(self, name: str) -> Shape:
        """UserError also for an index of a kind that is not tuned here."""
        _, _, vector, metric, kind = self._fields(name)
        fields = self.client.describe_collection(name)["fields"]
        [dim] = [int(field["params"]["dim"]) for field in fields if field["name"] == vector]
        return Shape(dim, _METRICS.get(metric, metric), self._knob(name, kind))

    def note(self, name: str) -> str:
        return str((self.client.describe_collection(name).get("properties") or {}).get(_NOTE, ""))

    def keep(self, name: str, note: str) -> None:
        self.client.alter_collection_properties(name, {_NOTE: note})

    def target(self, alias: str) -> str | None:
        named = [name for name in self.names("") if alias in self.client.list_aliases(name)["aliases"]]
        return named[0] if named else None

    def point(self, alias: str, name: str) -> None:
        self._load(name)
        move = self.client.create_alias if self.target(alias) is None else self.client.alter_alias
        move(collection_name=name, alias=alias)

    def drop(self, name: str) -> None:
        self.client.drop_collection(name)
        self._loaded.discard(name)

    def close(self) -> None:
        """Close the client; a file too, for other processes."""
        self.client.close()
        if self.file:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self.file)

    def _index(self, kind: str, settings: dict[str, int]) -> Any:
        index_params = self.client.prepare_index_params()
        index_params.add_index("vector", index_type=kind, metric_type="IP", params=settings)
        return index_params

    def _complete(self, name: str) -> None:
        """Give a collection of ours the index without which no server loads it: a kill may have come before that."""
        if name not in self._loaded and not self.client.list_indexes(name):
            self.client.create_index(name, self._index("FLAT", {}))

    def _load(self, name: str) -> None:
        """Bring a collection into memory, once: Milvus Lite forgets that it was when its process ends."""
        if name not in self._loaded:
            self.client.load_collection(name)
            self._loaded.add(name)

    @staticmethod
    def _knob(name: str, kind: str) -> str:
        if kind not in _KNOBS:
            kinds = ", ".join(filter(None, _KNOBS))
            raise UserError(
                f"{name}: its vectors have an index of the kind {kind}; searches of {kinds} can be tuned here"
            )
        return _KNOBS[kind]

    def _fields(self, name: str) -> tuple[str, str, str, str, str]:
        """Fields of id, title ("" without) and vector; metric and kind of its index as Milvus calls them."""
        if name in self._field_names:
            return self._field_names[name]
        if not self.client.has_collection(name):
            raise UserError(f"{name}: no such collection or alias here; look at TO and the name")
        fields = self.client.describe_collection(name)["fields"]
        names = [field["name"] for field in fields]
        vectors = [field["name"] for field in fields if field["type"] == self.types.FLOAT_VECTOR]
        vector = one_field(vectors, ["vector", "embedding", *vectors], name, "field of type FLOAT_VECTOR")
        doc = one_field(names, ["id", "doc_id"], name, "field of document ids")
        indexes = [self.client.describe_index(name, index) for index in self.client.list_indexes(name)]
        vector_index: dict[str, Any] = next((index for index in indexes if index["field_name"] == vector), {})
        metric, kind = (str(vector_index.get(key, "")) for key in ("metric_type", "index_type"))
        self._field_names[name] = doc, "title" if "title" in names else "", vector, metric, kind
        return self._field_names[name]
