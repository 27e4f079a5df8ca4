"""The tables in which steps meet: Parquet with one declared schema each, checked on write and on read."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from slimtower.common.files import staged_file

# Where an alignment text is from: the column `part` of alignment_texts and held_out.
Part = Literal[
    "train_queries",
    "generated_queries",
    "random_queries",
    "perturbed_queries",
    "documents",
    "titles",
    "sentences",
    "spans",
    "words",
    "unlabelled_queries",
]
FILLER: Part = "spans"  # makes up for missing texts where `embed.least_texts` asks for more than embed.parts give
DOCUMENTS: Part = "documents"  # a student's `document_share` says how often it reads them
TITLES: Part = "titles"
FROM_DOCUMENTS: tuple[Part, ...] = (DOCUMENTS, TITLES, "sentences", FILLER)  # their source_id is a document's
_ROWS_AT_ONCE = 2**20  # a row group; the text of so many rows fits into one chunk, which the text of a log does not


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


_text, _integer, _real = pa.string(), pa.int32(), pa.float32()

SCHEMAS: dict[str, pa.Schema] = {
    "corpus": _schema(doc_id=_text, dataset=_text, title=_text, topic=_text, content=_text),
    "queries": _schema(query_id=_text, dataset=_text, text=_text, split=_text),  # train, dev and test
    "unlabelled_queries": _schema(query_id=_text, dataset=_text, text=_text),
    "impressions": _schema(
        session_id=_text, query_id=_text, doc_id=_text, rank=_integer, clicked=pa.bool_(), timestamp=pa.int64()
    ),
    "relevance": _schema(query_id=_text, doc_id=_text, score=_real),
    "term_scores": _schema(term=_text, score=_real),
    "given_triplets": _schema(query_id=_text, positive_id=_text, negative_id=_text),
    "candidates": _schema(query_id=_text, doc_id=_text, rank=_integer, score=_real),
    "qrels": _schema(query_id=_text, dataset=_text, doc_id=_text, grade=_integer, split=_text),
    "satisfaction": _schema(query_id=_text, doc_id=_text, grade=_integer),  # none where no source has such labels
    "answers": _schema(query_id=_text, answers=pa.list_(pa.field("element", _text))),  # none where no source has any
    "rejects": _schema(source=_text, line=pa.int64(), reason=_text, raw=_text),
    "associations": _schema(query_id=_text, other_query_id=_text, kind=_text),
    "triplets": _schema(
        query_id=_text, positive_id=_text, negative_id=_text, source=_text, via_query_id=_text, weight=_real
    ),
    "generated_queries": _schema(
        query_id=_text, source_query_id=_text, variant=_integer, text=_text, sigma=_real, mask_ratio=_real
    ),
    "alignment_texts": _schema(text_sha=_text, text=_text, part=_text, role=_text, source_id=_text),
    "scores": _schema(text_row=_integer, doc_row=_integer, score=_real),
    "held_out": _schema(text_sha=_text, text=_text, part=_text, role=_text, source_id=_text),
    "per_query": _schema(query_id=_text, dataset=_text, model=_text, split=_text, measure=_text, value=pa.float64()),
    "slices": _schema(query_id=_text, dataset=_text, slice=_text),  # test queries of a kind; slices overlap
}


def table_from_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build the named table from row mappings."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMAS[name])


def table_from_columns(name: str, columns: Iterable[Sequence[Any]]) -> pa.Table:
    """Build the named table from its columns, in their order: less memory than a mapping for each row."""
    schema = SCHEMAS[name]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def write_table(folder: Path, name: str, *tables: pa.Table, metadata: Mapping[str, str] | None = None) -> Path:
    """Write `folder/<name>.parquet` by rename, several tables one after the other, with metadata of its schema.

    Text columns may be dictionaries of text. ValueError when columns or types differ from the schema.
    """
    return stream_table(folder, name, tables, metadata)


def stream_table(
    folder: Path, name: str, tables: Iterable[pa.Table], metadata: Mapping[str, str] | None = None
) -> Path:
    """The same of tables that are made while it is written: one at a time is in memory."""
    schema, path, rows = SCHEMAS[name].with_metadata(metadata), folder / f"{name}.parquet", 0
    with staged_file(path) as staging, pq.ParquetWriter(staging, schema, compression="zstd") as writer:
        for table in tables:
            if table.column_names != schema.names:
                raise ValueError(f"table {name}: columns {table.column_names}, expected {schema.names}")
            rows += table.num_rows
            for start in range(0, table.num_rows, _ROWS_AT_ONCE):
                writer.write_table(table.slice(start, _ROWS_AT_ONCE).cast(schema))
        if not rows:
            writer.write_table(schema.empty_table())
    return path


def table_path(folder: Path, name: str) -> Path:
    """Path of the named table, after its schema was checked; UserError when missing or of another schema."""
    path = folder / f"{name}.parquet"
    if not path.is_file():
        raise UserError(f"{path}: not found; run `dvc repro` (or `make demo`) to make it")
    schema = pq.read_schema(path)
    if not schema.remove_metadata().equals(SCHEMAS[name]):
        raise UserError(
            f"{path}: its columns ({', '.join(schema.names)}) are not those of the table {name}"
            f" ({', '.join(SCHEMAS[name].names)}); delete it and run the stage that writes it again"
        )
    return path


def row_count(folder: Path, name: str) -> int:
    """Rows of `folder/<name>.parquet`; UserError when it is missing or its schema differs."""
    return int(pq.read_metadata(table_path(folder, name)).num_rows)


def read_table(folder: Path, name: str) -> pa.Table:
    """Read `folder/<name>.parquet`; UserError when it is missing or its schema differs."""
    return pq.read_table(table_path(folder, name))
