"""The stage ingest: sources in, one corpus with its queries, judgements, sessions and rejects out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from steps.core.files import staged_folder, write_json
from steps.core.params.ingest import ApiDocsSource, IngestParams, Source
from steps.core.tables import SCHEMAS, table_from_rows, write_table
from steps.core.tracking import Run
from steps.ingest.api_docs import read_api_docs
from steps.ingest.beir import read_beir
from steps.ingest.click_simulation import simulate_sessions
from steps.ingest.leakage import evaluation_texts, without_evaluation_texts
from steps.ingest.pool import read_pool
from steps.ingest.rejects import Rejects
from steps.ingest.report import build_report, metrics
from steps.ingest.source_data import Document, Judgement, Query, SourceData


def run(*, sources: Sequence[Source], output: Path, params: IngestParams, run: Run) -> None:
    """Read the sources and the pool, guard the evaluation queries, and write the tables and report.json.

    Raises UserError when a source is missing, unusable, or has too many defect rows; `output` then stays as it was.
    """
    rejects = Rejects()
    read = [_read(at, source, params, rejects) for at, source in enumerate(sources)]
    queries = [query for data in read for query in data.queries]
    if params.pool:
        queries += read_pool(
            Path(params.pool),
            max_query_words=params.max_query_words,
            max_reject_ratio=params.max_reject_ratio,
            rejects=rejects,
        )
    queries = without_evaluation_texts(queries, evaluation_texts(queries), rejects)
    kept = {query.query_id for query in queries}
    judgements = [row for data in read for row in data.judgements if row.query_id in kept]
    documents = [document for data in read for document in data.documents]
    simulated = {source.name for source in sources if isinstance(source, ApiDocsSource)}
    impressions = _impressions(simulated, documents, queries, judgements, params)
    facts = {data.name: data.facts for data in read}
    report = build_report(documents, queries, judgements, impressions, facts, rejects)

    with staged_folder(output) as folder:
        write_table(folder, "corpus", table_from_rows("corpus", _rows(documents)))
        write_table(folder, "queries", _queries_table(queries))
        write_table(folder, "qrels", table_from_rows("qrels", _rows(judgements)))
        write_table(folder, "rejects", table_from_rows("rejects", rejects.table_rows()))
        tables = [impressions[name] for name in sorted(impressions)]
        write_table(folder, "impressions", pa.concat_tables([SCHEMAS["impressions"].empty_table(), *tables]))
        write_json(folder / "report.json", report)
    run.param("corpus_digest", report["corpus_digest"])
    run.param("sessions_simulated", report["simulated"])
    run.metrics(metrics(report))
    run.artifact(output / "report.json")


def _read(at: int, source: Source, params: IngestParams, rejects: Rejects) -> SourceData:
    if isinstance(source, ApiDocsSource):
        return read_api_docs(
            source,
            key=f"ingest.sources[{at}]",
            seed=params.seed,
            max_query_words=params.max_query_words,
            max_reject_ratio=params.max_reject_ratio,
            rejects=rejects,
        )
    return read_beir(
        source.name,
        Path(source.path),
        key=f"ingest.sources[{at}].path",
        seed=params.seed,
        dev_fraction=params.dev_fraction,
        max_query_words=params.max_query_words,
        max_reject_ratio=params.max_reject_ratio,
        rejects=rejects,
    )


def _impressions(
    simulated: set[str],
    documents: Sequence[Document],
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    params: IngestParams,
) -> dict[str, pa.Table]:
    """Simulated sessions by data set; every input in the order of its ids, so that sources may change places."""
    relevant: defaultdict[str, set[str]] = defaultdict(set)
    for row in judgements:
        relevant[row.query_id].add(row.doc_id)
    return {
        name: simulate_sessions(
            sorted(query for query in queries if query.dataset == name),
            relevant,
            sorted(document for document in documents if document.dataset == name),
            params.clicks,
            params.seed,
        )
        for name in simulated
    }


def _rows(rows: Iterable[Document | Judgement]) -> Iterable[dict[str, Any]]:
    return (row._asdict() for row in sorted(rows))


def _queries_table(queries: Sequence[Query]) -> pa.Table:
    columns = SCHEMAS["queries"].names
    return table_from_rows("queries", ({name: getattr(query, name) for name in columns} for query in sorted(queries)))
