"""Small random click logs for the tests of `mine`."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq
from rows import row

from slimtower.common.document_texts import DEFAULT, DocumentTemplate
from steps.core.tables import table_from_rows, write_table
from steps.mine.engine import Engine, open_engine
from steps.mine.params import MineParams
from steps.mine.run import run
from steps.tracking.runs import NullRun

Row = dict[str, Any]

PARAMS: dict[str, Any] = {
    "engine": "duckdb",
    "spark_master": "local[1]",
    "planner": "idf",
    "click_threshold": 0.15,
    "relevance_threshold": 0.1,
    "max_associations": 3,
    "max_positives": 2,
    "multi_hop_weight": 0.5,
    "memory_limit": "500MB",
    "debias": {"method": "none"},
}


@contextmanager
def engine_in(folder: Path, **changes: Any) -> Iterator[Engine]:
    """The engine of the tests' parameters, some changed."""
    with open_engine(MineParams(**{**PARAMS, **changes}), folder) as engine:
        yield engine


def engine_table(engine: Engine, schema: Mapping[str, pa.DataType], rows: Iterable[tuple[Any, ...]]) -> ir.Table:
    """Rows as a table of the engine."""
    path = engine.scratch / f"given-{len(list(engine.scratch.iterdir()))}.parquet"
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.values(), strict=True)]
    pq.write_table(pa.table(arrays, names=list(schema)), path)
    return engine.scan(path)


def query(query_id: str, text: str, split: str = "train", dataset: str = "d") -> Row:
    return row("queries", query_id, dataset, text, split)


def document(doc_id: str, content: str = "", title: str = "t", dataset: str = "d") -> Row:
    return row("corpus", doc_id, dataset, title, "", content or f"text of {doc_id}")


def impression(query_id: str, doc_id: str, clicked: bool, session: int = 0, rank: int = 1) -> Row:
    return row("impressions", f"s{session}", query_id, doc_id, rank, clicked, session)


def judgement(query_id: str, doc_id: str, grade: int = 1, split: str = "train", dataset: str = "d") -> Row:
    return row("qrels", query_id, dataset, doc_id, grade, split)


def hits(query_id: str, *doc_ids: str) -> list[Row]:
    """What a searcher found for a query, best first."""
    return [row("candidates", query_id, doc_id, rank, 1 / rank) for rank, doc_id in enumerate(doc_ids, start=1)]


def write_log(
    folder: Path,
    queries: list[Row],
    documents: list[Row],
    impressions: list[Row],
    relevance: Sequence[Row] = (),
    qrels: Sequence[Row] = (),
    given: Sequence[Row] = (),
    template: str = DEFAULT,
) -> Path:
    """The tables of ingest that `mine` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"queries": queries, "corpus": documents, "impressions": impressions, "relevance": relevance}
    for name, rows in (tables | {"qrels": qrels, "given_triplets": given, "term_scores": []}).items():
        metadata = DocumentTemplate(template).metadata if name == "corpus" else None
        write_table(folder, name, table_from_rows(name, rows), metadata=metadata)
    return folder


def write_found(folder: Path, name: str, **by_whom: Sequence[Row]) -> Path:
    """A folder of `candidates` (name: candidates) or of `rank` (name: relevance) for each searcher or ranker."""
    folder.mkdir(parents=True, exist_ok=True)
    for who, rows in by_whom.items():
        write_table(folder / who, name, table_from_rows(name, rows))
    return folder


def random_log(seed: int, datasets: int = 6, queries: int = 12) -> tuple[list[Row], list[Row], list[Row]]:
    """Queries of few words, documents of which some are copies, sessions with some clicks, in several data sets."""
    draw = random.Random(seed)
    query_rows, document_rows, impression_rows = [], [], []
    for number in range(datasets):
        name = f"d{number}"
        doc_ids = [f"{name}/doc{i}" for i in range(10)]
        document_rows += [
            document(doc_id, f"{name}: {f'word{draw.randrange(7)} ' * 4}", doc_id, name) for doc_id in doc_ids
        ]
        for i in range(queries):
            query_id = f"{name}/q{i}"
            text = " ".join(draw.choices(["alpha", "beta", "gamma", "delta", "epsilon"], k=draw.randint(1, 4)))
            split = draw.choices(["train", "dev", "test"], [8, 1, 1])[0]
            query_rows.append(query(query_id, text if split == "train" else f"{text} {i} {split}", split, name))
            for session in (day + 100 * (split == "test") for day in range(draw.randrange(3))):
                for rank, doc_id in enumerate(draw.sample(doc_ids, 5), start=1):
                    impression_rows.append(impression(query_id, doc_id, draw.random() < 0.3, session, rank))
    return query_rows, document_rows, impression_rows


def mine(ingest: Path, output: Path, **changes: Any) -> Path:
    """Run the cell `click` with the tests' parameters, some changed."""
    return _cell("click", ingest, [], None, output, changes)


def mine_judged(ingest: Path, candidates: Path, clicks: Path, output: Path, **changes: Any) -> Path:
    """Run the cell `judged` on what the cell `click` left."""
    return _cell("judged", ingest, sorted(candidates.iterdir()), clicks, output, changes)


def mine_relevance(ingest: Path, earlier: Path, output: Path, rank: Path | None = None, **changes: Any) -> Path:
    """Run the cell `relevance` on what an earlier cell left; `rank`: where folders of rankers' scores lie."""
    return _cell("relevance", ingest, sorted(rank.iterdir()) if rank else [], earlier, output, changes)


def _cell(signal: Any, ingest: Path, inputs: list[Path], earlier: Path | None, output: Path, changes: Row) -> Path:
    params = MineParams(**{**PARAMS, **changes})
    run(
        signal=signal, ingest=ingest, input_folders=inputs, earlier=earlier, output=output, params=params, run=NullRun()
    )
    return output
