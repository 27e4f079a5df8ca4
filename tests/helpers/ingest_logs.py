"""Small search logs on disk, and the params that read them."""

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.recipe import fill
from slimtower.common.settings import parse_mapping
from steps.core.tables import read_table
from steps.ingest.params import IngestParams
from steps.ingest.run import run
from steps.tracking.runs import NullRun

COLUMNS = {"query": "q", "doc_id": "doc", "rank": "pos", "clicked": "clk", "timestamp": "ts", "session_id": "sid"}
DAY = 86_400
FIRST = 1_767_225_600  # 2026-01-01 00:00:00 UTC
ROOT = Path(__file__).parents[2]


def params(*sources: Mapping[str, Any], **changes: Any) -> IngestParams:
    """Params of these sources; every reject is let pass."""
    values: dict[str, Any] = {
        "seed": 3,
        "sources": list(sources),
        "since": "",
        "until": "",
        "unlabelled_queries": "",
        "document": "{title}. {content}",
        "max_reject_ratio": 1.0,
    }
    return IngestParams.model_validate(values | changes)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows in the format that the suffix names; every row has the columns of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
        return path
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "jsonl":
        lines = [json.dumps(row) for row in rows]
    else:
        comma = "," if kind == "csv" else "\t"
        lines = [comma.join(rows[0]), *(comma.join(str(value) for value in row.values()) for row in rows)]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """Lines of JSON."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def set_in(rows: Iterable[dict[str, Any]], **change: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The rows with these values changed."""
    return [row | {name: value(row[name]) for name, value in change.items()} for row in rows]


def corpus(folder: Path, documents: int = 6) -> Path:
    """A corpus of the documents d0, d1, ..."""
    rows = [{"doc_id": f"d{n}", "title": f"title {n}", "content": f"content {n}"} for n in range(documents)]
    return write(folder / "corpus.jsonl", rows)


def impression(query: str, day: float, doc: str = "d0", *, rank: Any = 1, clicked: Any = False) -> dict[str, Any]:
    """A row of a click log, `day` days after FIRST."""
    moment, session = int(FIRST + day * DAY), f"s {query} {day}"
    return {"q": query, "doc": doc, "pos": rank, "clk": clicked, "ts": moment, "sid": session}


def click_log(
    folder: Path, rows: Sequence[Mapping[str, Any]], name: str = "log.jsonl", **changes: Any
) -> dict[str, Any]:
    """A source of kind click_log over these rows."""
    source = {
        "name": "log",
        "kind": "click_log",
        "path": str(write(folder / name, rows)),
        "columns": COLUMNS,
        "corpus": str(corpus(folder)),
        "test_from": "2026-01-06",
        "validation_fraction": 0.0,
    }
    return source | changes


def ingest(folder: Path, checked: IngestParams) -> Path:
    """Run the stage; returns its output."""
    run(output=folder / "out", params=checked, run=NullRun())
    return folder / "out"


def rows_of(out: Path, table: str, *columns: str) -> list[Any]:
    """Rows of an output table in their order, as tuples of these columns (one column: bare values)."""
    values = [read_table(out, table)[name].to_pylist() for name in columns]
    return values[0] if len(values) == 1 else list(zip(*values, strict=True))


def texts_by_split(out: Path) -> dict[str, list[str]]:
    """Texts of the queries of each split, sorted."""
    texts: dict[str, list[str]] = {}
    for split, text in sorted(rows_of(out, "queries", "split", "text")):
        texts.setdefault(split, []).append(text)
    return texts


def reasons(out: Path) -> list[tuple[str, int, str]]:
    """(source, line, reason) of the rejects."""
    return rows_of(out, "rejects", "source", "line", "reason")


def without(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The row less some columns."""
    return {name: value for name, value in row.items() if name not in set(names)}


def from_recipe(log: Path) -> dict[str, Any]:
    """recipes/ubi.yaml's source for the service's log of a data set, by the documented command, all test queries."""
    recipe, docs = ROOT / "recipes/ubi.yaml", (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    assert "DATA=searches/api DATASET=api " in docs
    variables = {"DATA": str(log), "DATASET": log.name, "SIMULATED": "false"}
    filled = parse_mapping(fill(recipe.read_text(encoding="utf-8"), variables, recipe), recipe.name)
    (source,) = filled["ingest"]["sources"]
    return source | {"test_from": "", "validation_fraction": 0.0}
