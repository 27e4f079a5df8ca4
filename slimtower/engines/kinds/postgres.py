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
        """By its scheme."""
        return to if to.startswith(("postgresql://", "postgres://")) else None

    def names(self, prefix: str) -> list[str]:
        """Tables whose name begins so."""
        query = "select tablename from pg_tables where schemaname = current_schema() and starts_with(tablename, %s)"
        return [name for (name,) in self.connection.execute(query, (prefix,))]

    def create(self, name: str, dim: int) -> None:
        """An empty table; UserError for more dimensions than pgvector indexes."""
        if dim > _INDEXED:
            raise UserError(f"pgvector indexes at most {_INDEXED} dimensions, the index has {dim}; set index.dim")
        self.connection.execute("create extension if not exists vector")
        self._register()
        self._run(
            "create table if not exists {} (id text primary key, title text not null, vector vector({}) not null)",
            self.sql.Identifier(name),
            self.sql.Literal(dim),
        )

    def count(self, name: str) -> int:
        """Rows of the table."""
        return int(self._run("select count(*) from {}", self.sql.Identifier(name)).fetchone()[0])

    def upsert(self, name: str, rows: Rows) -> None:
        """Copy the rows in, in place of those of the same ids, as one transaction."""
        table = self.sql.Identifier(name)
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute(self.sql.SQL("delete from {} where id = any(%s)").format(table), (rows.ids,))
            copy = self.sql.SQL("copy {} (id, title, vector) from stdin (format binary)").format(table)
            with cursor.copy(copy) as copied:
                copied.set_types(["text", "text", "vector"])
                for doc, title, vector in zip(rows.ids, rows.titles, rows.vectors, strict=True):
                    copied.write_row((doc, title.replace("\0", " "), vector))  # text of Postgres holds no NUL

    def build(self, name: str, graph: Graph) -> None:
        """Create the HNSW index."""
        index, table = self.sql.Identifier(f"{name}_hnsw"), self.sql.Identifier(name)
        self._run("drop index if exists {}", index)
        self._run(
            "create index {} on {} using hnsw (vector vector_ip_ops) with (m = {}, ef_construction = {})",
            index,
            table,
            self.sql.Literal(graph.m),
            self.sql.Literal(max(graph.ef_construction, 2 * graph.m)),
        )
        self._run("analyze {}", table)

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        """The best k rows of each vector."""
        doc, title, vector, metric, kinds = self._fields(name)
        query = self.sql.SQL("select {}, {}, {} {} %(v)s from {} order by {} {} %(v)s limit %(k)s").format(
            self.sql.Identifier(doc),
            self.sql.Identifier(title) if title else self.sql.Literal(""),
            self.sql.Identifier(vector),
            self.sql.SQL(_OPERATORS[metric]),
            self.sql.Identifier(name),
            self.sql.Identifier(vector),
            self.sql.SQL(_OPERATORS[metric]),
        )
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
        """The stored vectors of these ids."""
        doc, _, vector, *_ = self._fields(name)
        field = self.sql.Identifier(doc)
        query = self.sql.SQL("select {}::text, {}::vector from {} where {}::text = any(%s)").format(
            field, self.sql.Identifier(vector), self.sql.Identifier(name), field
        )
        return {hit: _array(stored) for hit, stored in self.connection.execute(query, (list(ids),))}

    def shape(self, name: str) -> Shape:
        """Dimensions of a stored vector, metric and knob of its index; UserError for an index of another kind."""
        _, _, vector, metric, kinds = self._fields(name)
        if kinds and kinds not in ([kind] for kind in _KNOBS):
            raise UserError(
                f"{name}: its vectors have an index of the kind {' and one of the kind '.join(kinds)}; searches of one"
                " hnsw or one ivfflat index alone can be tuned here"
            )
        row = self._run(
            "select vector_dims({}::vector) from {} limit 1", self.sql.Identifier(vector), self.sql.Identifier(name)
        ).fetchone()
        return Shape(row[0] if row else 0, metric, _KNOBS[kinds[0]] if kinds else "ef")

    def note(self, name: str) -> str:
        """The table's comment."""
        return self._comment(name) or ""

    def keep(self, name: str, note: str) -> None:
        """Write the table's comment."""
        self._run("comment on table {} is {}", self.sql.Identifier(name), self.sql.Literal(note))

    def target(self, alias: str) -> str | None:
        """The table that the view's comment names."""
        named = self._comment(alias)
        return named if named and named in self.names(alias) else None

    def point(self, alias: str, name: str) -> None:
        """Replace the view. Its columns are of no fixed dimension, so another teacher's table fits too.

        Waiting for the view's lock holds up all searches behind it, so this waits for a moment and tries again a while
        later. TransientError if somebody, such as pg_dump, reads the view all the time.
        """
        import psycopg

        deadline = time.monotonic() + _FLIP_S
        while True:
            try:
                self._replace(alias, name)
                return
            except psycopg.errors.LockNotAvailable:
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"{alias}: others have read it for {_FLIP_S:.0f} s in one transaction (pg_stat_activity says"
                        " who), and what answered before goes on; run it again when they are done"
                    ) from None
            time.sleep(_PAUSE_S)

    def _replace(self, alias: str, name: str) -> None:
        with self.connection.transaction():
            self._run("set local lock_timeout = {}", self.sql.Literal(_LOCK_MS))
            self._run(
                "create or replace view {} as select id, title, vector::vector as vector from {}",
                self.sql.Identifier(alias),
                self.sql.Identifier(name),
            )
            self._run("comment on view {} is {}", self.sql.Identifier(alias), self.sql.Literal(name))

    def drop(self, name: str) -> None:
        """Drop the table."""
        self._run("drop table if exists {}", self.sql.Identifier(name))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _run(self, text: str, *parts: Any) -> Any:
        return self.connection.execute(self.sql.SQL(text).format(*parts))

    def _comment(self, name: str) -> str | None:
        quoted = self.sql.Identifier(name).as_string(self.connection)
        query = "select obj_description(to_regclass(%s), 'pg_class')"
        comment: str | None = self.connection.execute(query, (quoted,)).fetchone()[0]
        return comment

    def _fields(self, name: str) -> _Fields:
        """Of a table or view; looked up once a name."""
        if name not in self._columns:
            quoted = self.sql.Identifier(name).as_string(self.connection)
            query = (
                "select attname, format_type(atttypid, null) from pg_attribute"
                " where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
            )
            columns = dict(self.connection.execute(query, (quoted,)).fetchall())
            if not columns:
                raise UserError(f"{name}: no such table or view here; look at TO and the name")
            vectors = [column for column, kind in columns.items() if kind in ("vector", "halfvec")]
            vector = one_field(vectors, ["vector", "embedding", *vectors], name, "column of type vector")
            doc = one_field(list(columns), ["id", "doc_id"], name, "column of document ids")
            self._columns[name] = _Fields(doc, "title" if "title" in columns else "", vector, *self._indexed(quoted))
        return self._columns[name]

    def _indexed(self, quoted: str) -> tuple[str, list[str]]:
        """Metric and kinds of the vector indexes of a table, or of what a view shows."""
        query = (
            "select opcname, amname from pg_index join pg_opclass o on o.oid = any(indclass::oid[])"
            " join pg_am a on a.oid = opcmethod where indrelid = to_regclass(%(name)s) or indrelid in (select refobjid"
            " from pg_depend join pg_rewrite r on r.oid = objid and classid = 'pg_rewrite'::regclass"
            " where ev_class = to_regclass(%(name)s) and refclassid = 'pg_class'::regclass)"
        )
        rows = self.connection.execute(query, {"name": quoted}).fetchall()
        indexes = [(re.fullmatch(r"(?:vector|halfvec)_(\w+)_ops", operators), kind) for operators, kind in rows]
        metrics = sorted({"inner_product" if match[1] == "ip" else match[1] for match, _ in indexes if match})
        return metrics[0] if metrics else "", sorted({kind for match, kind in indexes if match})


def _array(stored: Any) -> np.ndarray:
    return np.asarray(stored.to_numpy() if hasattr(stored, "to_numpy") else stored, dtype=np.float32)
