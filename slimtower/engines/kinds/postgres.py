"""PostgreSQL with pgvector: a table a collection, a view an alias, a comment for what is kept."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from slimtower.common.errors import TransientError, UserError
from slimtower.engines.engine import Engine, Graph, Rows, Shape, one_field
from slimtower.serving.release import Hit

_INDEXED = 2000  # dimensions that pgvector's HNSW takes
_LOCK_MS, _PAUSE_S, _FLIP_S = 200, 1.0, 300.0  # of a flip: how long it waits, then rests, and goes on with both
_KNOBS = {"hnsw": "ef", "ivfflat": "ivfflat.probes"}
_OPERATORS = {"inner_product": "<#>", "cosine": "<=>", "l2": "<->", "": "<#>"}


class _Fields(NamedTuple):
    """Columns of id, title (empty without) and vector; metric and kinds (access methods) of the vector's indexes."""

    doc: str
    title: str
    vector: str
    metric: str
    kinds: list[str]


class Postgres(Engine):
    """One connection; tables lie in its schema."""

    address = "postgresql://host/database (pgvector)"
    packages = frozenset({"psycopg", "pgvector"})

    def __init__(self, uri: str) -> None:
        import psycopg
        from pgvector.psycopg import register_vector
        from psycopg import sql

        self.sql = sql
        try:
            self.connection: Any = psycopg.connect(uri, autocommit=True, connect_timeout=10)
        except psycopg.ProgrammingError as error:  # psycopg's own, of the address, which it repeats with the password
            if error.sqlstate:
                raise
            raise UserError(
                "TO holds no address that can be read; give postgresql://user:password@host/database, with special"
                " characters as %20"
            ) from None
        self._register = partial(register_vector, self.connection)
        with suppress(psycopg.ProgrammingError):  # no such extension yet: `create` makes it, and nothing else does
            self._register()
        self._columns: dict[str, _Fields] = {}

    @classmethod
    def uri_of(cls, to: str) -> str | None:
        return to if to.startswith(("postgresql://", "postgres://")) else None

    def names(self, prefix: str) -> list[str]:
        query = "select tablename from pg_tables where schemaname = current_schema() and starts_with(tablename, %s)"
        return [name for (name,) in self.connection.execute(query, (prefix,))]

    def create(self, name: str, dim: int) -> None:
        """UserError for more dimensions than pgvector indexes."""
        if dim > _INDEXED:
            raise UserError(f"pgvector indexes at most {_INDEXED} dimensions, the index has {dim}; set index.dim")
        self._run("create extension if not exists vector")
        self._register()
        columns = "id text primary key, title text not null, vector vector({}) not null"
        self._run(f"create table if not exists {{}} ({columns})", name, dim)

    def count(self, name: str) -> int:
        return int(self._run("select count(*) from {}", name).fetchone()[0])

    def upsert(self, name: str, rows: Rows) -> None:
        """As one transaction."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            self._run("delete from {} where id = any(%s)", name, values=(rows.ids,))
            copy = self._composed("copy {} (id, title, vector) from stdin (format binary)", name)
            with cursor.copy(copy) as copied:
                copied.set_types(["text", "text", "vector"])
                for doc, title, vector in zip(rows.ids, rows.titles, rows.vectors, strict=True):
                    copied.write_row((doc, title.replace("\0", " "), vector))  # text of Postgres holds no NUL

    def build(self, name: str, graph: Graph) -> None:
        self._run("drop index if exists {}", f"{name}_hnsw")
        statement = "create index {} on {} using hnsw (vector vector_ip_ops) with (m = {}, ef_construction = {})"
        self._run(statement, f"{name}_hnsw", name, graph.m, max(graph.ef_construction, 2 * graph.m))
        self._run("analyze {}", name)

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        doc, title, vector, metric, kinds = self._fields(name)
        operator = self.sql.SQL(_OPERATORS[metric])
        query = self._composed(
            "select {}, {}, {} {} %(v)s from {} order by {} {} %(v)s limit %(k)s",
            doc, title or self.sql.Literal(""), vector, operator, name, vector, operator,
        )  # fmt: skip
        shift = 1.0 if metric == "cosine" else 0.0  # distances become scores
        results = []
        with self.connection.transaction():
            option, value = ("ivfflat.probes", ef) if kinds == ["ivfflat"] else ("hnsw.ef_search", max(ef, k))
            self.connection.execute("select set_config(%s, %s, true)", (option, str(value)))
            for query_vector in vectors:
                hits = self.connection.execute(query, {"v": query_vector, "k": k}).fetchall()
                results.append([Hit(str(hit), shift - distance, named or "") for hit, named, distance in hits])
        return results

    def vectors(self, name: str, ids: Sequence[str]) -> dict[str, np.ndarray]:
        doc, _, vector, *_ = self._fields(name)
        query = "select {}::text, {}::vector from {} where {}::text = any(%s)"
        return {hit: _array(stored) for hit, stored in self._run(query, doc, vector, name, doc, values=(list(ids),))}

    def shape(self, name: str) -> Shape:
        """Dimensions are those of a stored vector. UserError also for an index of a kind that is not tuned here."""
        _, _, vector, metric, kinds = self._fields(name)
        if kinds and kinds not in ([kind] for kind in _KNOBS):
            raise UserError(
                f"{name}: its vectors have an index of the kind {' and one of the kind '.join(kinds)}; searches of one"
                " hnsw or one ivfflat index alone can be tuned here"
            )
        row = self._run("select vector_dims({}::vector) from {} limit 1", vector, name).fetchone()
        return Shape(row[0] if row else 0, metric, _KNOBS[kinds[0]] if kinds else "ef")

    def note(self, name: str) -> str:
        query = "select obj_description(to_regclass(quote_ident(%s)), 'pg_class')"
        return self.connection.execute(query, (name,)).fetchone()[0] or ""

    def keep(self, name: str, note: str) -> None:
        self._run("comment on table {} is {}", name, self.sql.Literal(note))

    def target(self, alias: str) -> str | None:
        """The table that the view's comment names."""
        named = self.note(alias)
        return named if named and named in self.names(alias) else None

    def point(self, alias: str, name: str) -> None:
        """Replace the view. Its columns are of no fixed dimension, so another teacher's table fits too.

        Waiting for the view's lock holds up all searches behind it, so this waits for a moment and tries again a while
        later. TransientError if somebody, such as pg_dump, reads the view all the time.
        """
        import psycopg

        deadline = time.monotonic() + _FLIP_S
        while True:
            with suppress(psycopg.errors.LockNotAvailable), self.connection.transaction():
                self._run("set local lock_timeout = {}", _LOCK_MS)
                view = "create or replace view {} as select id, title, vector::vector as vector from {}"
                self._run(view, alias, name)
                self._run("comment on view {} is {}", alias, self.sql.Literal(name))
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{alias}: others have read it for {_FLIP_S:.0f} s in one transaction (pg_stat_activity says"
                    " who), and what answered before goes on; run it again when they are done"
                )
            time.sleep(_PAUSE_S)

    def drop(self, name: str) -> None:
        self._run("drop table if exists {}", name)

    def close(self) -> None:
        self.connection.close()

    def _composed(self, text: str, *parts: Any) -> Any:
        """A statement: strings among its parts are names, numbers literals."""
        makers = {str: self.sql.Identifier, int: self.sql.Literal}
        return self.sql.SQL(text).format(*(makers.get(type(part), lambda same: same)(part) for part in parts))

    def _run(self, text: str, *parts: Any, values: Sequence[Any] | None = None) -> Any:
        return self.connection.execute(self._composed(text, *parts), values)

    def _fields(self, name: str) -> _Fields:
        """Of a table or view; looked up once a name."""
        if name not in self._columns:
            query = (
                "select attname, format_type(atttypid, null) from pg_attribute"
                " where attrelid = to_regclass(quote_ident(%s)) and attnum > 0 and not attisdropped"
            )
            columns = dict(self.connection.execute(query, (name,)).fetchall())
            if not columns:
                raise UserError(f"{name}: no such table or view here; look at TO and the name")
            vectors = [column for column, kind in columns.items() if kind in ("vector", "halfvec")]
            vector = one_field(vectors, ["vector", "embedding", *vectors], name, "column of type vector")
            doc = one_field(list(columns), ["id", "doc_id"], name, "column of document ids")
            self._columns[name] = _Fields(doc, "title" if "title" in columns else "", vector, *self._indexed(name))
        return self._columns[name]

    def _indexed(self, name: str) -> tuple[str, list[str]]:
        """Metric and kinds of the vector indexes of a table, or of what a view shows."""
        query = (
            "select opcname, amname from pg_index join pg_opclass o on o.oid = any(indclass::oid[])"
            " join pg_am a on a.oid = opcmethod where indrelid = to_regclass(quote_ident(%(name)s)) or indrelid in"
            " (select refobjid from pg_depend join pg_rewrite r on r.oid = objid and classid = 'pg_rewrite'::regclass"
            " where ev_class = to_regclass(quote_ident(%(name)s)) and refclassid = 'pg_class'::regclass)"
        )
        rows = self.connection.execute(query, {"name": name}).fetchall()
        indexes = [(re.fullmatch(r"(?:vector|halfvec)_(\w+)_ops", operators), kind) for operators, kind in rows]
        metrics = sorted({"inner_product" if match[1] == "ip" else match[1] for match, _ in indexes if match})
        return metrics[0] if metrics else "", sorted({kind for match, kind in indexes if match})


def _array(stored: Any) -> np.ndarray:
    return np.asarray(stored.to_numpy() if hasattr(stored, "to_numpy") else stored, dtype=np.float32)
