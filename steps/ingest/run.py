"""The stage ingest: sources in, one corpus with its queries, judgements, sessions and rejects out."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.files import staged_folder, write_json
from steps.core.tables import SCHEMAS, table_from_columns, write_table
from steps.ingest.click_simulation import simulate_sessions
from steps.ingest.coded_columns import among
from steps.ingest.document_vectors import write_vectors
from steps.ingest.locations import one_file
from steps.ingest.params import IngestParams
from steps.ingest.rejects import Reject, Rejects
from steps.ingest.report import build_report, counts, data_digest, metrics, summary
from steps.ingest.source import ReadContext
from steps.ingest.source_data import (
    UNLABELLED,
    UNLABELLED_QUERIES,
    Answers,
    Document,
    Judgement,
    Query,
    Satisfaction,
    SourceData,
)
from steps.ingest.splits import without_evaluation_texts
from steps.ingest.tsv_files import TERM_SCORES, read_term_scores, read_unlabelled
from steps.tracking.runs import Run

_Row = Document | Query | Judgement | Satisfaction | Answers | Reject


def run(*, output: Path, params: IngestParams, run: Run) -> None:
    """Read the sources and the unlabelled queries, guard the evaluation queries, and write the tables and report.json.

    A line on stdout says what each data set holds.
    Raises UserError when a source is missing, unusable, or has too many defect rows; `output` then stays as it was.
    """
    rejects = Rejects(params.max_reject_ratio)
    datasets = [
        source.read(ReadContext(f"ingest.sources[{at}]", params.window, params.seed, rejects))
        for at, source in enumerate(params.sources)
    ]
    queries = [query for data in datasets for query in data.queries]
    if params.unlabelled_queries:
        path = one_file(params.unlabelled_queries, f"ingest.{UNLABELLED_QUERIES}")
        queries += read_unlabelled(path, rejects)
    term_scores = SCHEMAS[TERM_SCORES].empty_table()
    if params.term_scores:
        term_scores = read_term_scores(one_file(params.term_scores, f"ingest.{TERM_SCORES}"), rejects)
    queries = without_evaluation_texts(queries, {text for data in datasets for text in data.held_out}, rejects)
    query_ids = {query.query_id for query in queries}
    judgements = [row for data in datasets for row in data.judgements if row.query_id in query_ids]
    labels: dict[str, list[Satisfaction] | list[Answers]] = {
        "satisfaction": [row for data in datasets for row in data.satisfaction if row.query_id in query_ids],
        "answers": [row for data in datasets for row in data.answers if row.query_id in query_ids],
    }
    documents = [document for data in datasets for document in data.documents]
    template = DocumentTemplate(params.document)
    for data in datasets:
        if bare := sum(
            not template.text(document.title, document.topic, document.content) for document in data.documents
        ):
            data.facts["documents_without_text"] = bare
        unread = sum(
            bool(document.topic) and document.topic.lower() not in document.title.lower() for document in data.documents
        )
        if unread and not template.names_topic:  # one that the title holds is read
            data.facts["topics_unread"] = unread
    relevance = {
        data.name: _of_queries(data, "relevance", query_ids) for data in datasets if data.relevance is not None
    }
    impressions = {
        data.name: _of_queries(data, "impressions", query_ids) for data in datasets if data.impressions is not None
    }
    triplets = {
        data.name: _of_queries(data, "given_triplets", query_ids)
        for data in datasets
        if data.given_triplets is not None
    }
    simulated = {source.name for source in params.sources if source.simulates_sessions}
    impressions |= _simulated(simulated, documents, queries, judgements, params, template)
    report = build_report(
        documents,
        queries,
        judgements,
        impressions,
        simulated | {data.name for data in datasets if data.sessions_simulated},
        {data.name: data.facts for data in datasets},
        rejects,
        triplets,
    )
    report["term_scores"] = term_scores.num_rows

    with staged_folder(output) as folder:
        write_table(folder, "corpus", _sorted_table("corpus", documents), metadata=template.metadata)
        write_vectors(folder / "document_vectors", sorted(documents), params.document_vectors)
        write_table(folder, "queries", _sorted_table("queries", (q for q in queries if q.split != UNLABELLED)))
        unlabelled = (query for query in queries if query.split == UNLABELLED)
        write_table(folder, UNLABELLED_QUERIES, _sorted_table(UNLABELLED_QUERIES, unlabelled))
        write_table(folder, "qrels", _sorted_table("qrels", judgements))
        for name, rows in labels.items():
            write_table(folder, name, _sorted_table(name, rows))
        write_table(folder, "rejects", _sorted_table("rejects", rejects.rows))
        for name, tables in (("impressions", impressions), ("relevance", relevance), ("given_triplets", triplets)):
            write_table(folder, name, *(tables[dataset] for dataset in sorted(tables)))
        write_table(folder, "term_scores", term_scores)
        write_json(folder / "report.json", report)
    print("\n".join(summary(report)))
    run.param("corpus_digest", report["corpus_digest"])
    run.param("sessions_simulated", report["simulated"])
    run.metrics(metrics(report))
    for name, entry in report["datasets"].items():
        dataset_queries = (query for query in queries if query.dataset == name)
        dataset_judgements = (row for row in judgements if row.dataset == name)
        run.dataset(name, data_digest(entry, dataset_queries, dataset_judgements), counts(entry))
    run.artifact(output / "report.json")


def _of_queries(
    data: SourceData, name: Literal["relevance", "impressions", "given_triplets"], query_ids: Collection[str]
) -> pa.Table:
    """The source's rows of the table less those of queries that the leakage guard rejected, which are counted."""
    table: pa.Table = getattr(data, name)
    rows = table.filter(among(table["query_id"], query_ids))
    if lost := table.num_rows - rows.num_rows:
        data.facts[f"{name}_of_left_out_queries"] = lost
    return rows


def _simulated(
    datasets: set[str],
    documents: Sequence[Document],
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    params: IngestParams,
    template: DocumentTemplate,
) -> dict[str, pa.Table]:
    """Simulated sessions by data set; every input in the order of its ids, so that sources may change places."""
    relevant: defaultdict[str, set[str]] = defaultdict(set)
    for row in judgements:
        if row.grade > 0:
            relevant[row.query_id].add(row.doc_id)
    return {
        name: simulate_sessions(
            sorted(query for query in queries if query.dataset == name),
            relevant,
            sorted(document for document in documents if document.dataset == name),
            params.seed,
            template,
        )
        for name in datasets
    }


def _sorted_table(name: str, rows: Iterable[_Row]) -> pa.Table:
    """The named table of rows that have its columns, sorted."""
    in_order = sorted(rows)
    return table_from_columns(name, ([getattr(row, column) for row in in_order] for column in SCHEMAS[name].names))
