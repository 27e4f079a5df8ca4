"""The stage ingest: sources in, one corpus with its queries, judgements, sessions and rejects out."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import staged_folder, write_json
from steps.core.tables import SCHEMAS, table_from_columns, write_table
from steps.core.texts import fold, words
from steps.ingest.click_simulation import simulate_sessions
from steps.ingest.coded_columns import among
from steps.ingest.document_vectors import write_vectors
from steps.ingest.locations import one_file
from steps.ingest.params import IngestParams
from steps.ingest.rejects import Rejects
from steps.ingest.report import build_report, counts, data_digest, metrics, summary
from steps.ingest.rows import Defect, LeftOut, decode, read_lines
from steps.ingest.source import (
    MAX_QUERY_WORDS,
    UNLABELLED,
    UNLABELLED_QUERIES,
    Document,
    Judgement,
    Query,
    ReadContext,
    SourceData,
    text_id,
)
from steps.ingest.splits import without_evaluation_texts
from steps.tracking.runs import Run

_TABLES = ("impressions", "relevance", "given_triplets")  # tables that sources bring as such
_TABLE_ENDINGS = ("jsonl", "json", "ndjson", "csv", "parquet")
TERM_SCORES = "term_scores"


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
    documents = [document for data in datasets for document in data.documents]
    judgements = [row for data in datasets for row in data.judgements if row.query_id in query_ids]
    rows: dict[str, Iterable[Any]] = {
        "corpus": documents,
        "queries": [query for query in queries if query.split != UNLABELLED],
        UNLABELLED_QUERIES: [query for query in queries if query.split == UNLABELLED],
        "qrels": judgements,
        "satisfaction": [row for data in datasets for row in data.satisfaction if row.query_id in query_ids],
        "answers": [row for data in datasets for row in data.answers if row.query_id in query_ids],
        "rejects": rejects.rows,
    }
    template = DocumentTemplate(params.document)
    for data in datasets:
        _count_unread(data, template)
    tables = {name: _of_queries(datasets, name, query_ids) for name in _TABLES}
    simulated = {source.name for source in params.sources if source.simulates_sessions}
    tables["impressions"] |= _simulated(simulated, documents, queries, judgements, params, template)
    simulated |= {data.name for data in datasets if data.sessions_simulated}
    report = build_report(datasets, queries, judgements, tables, simulated, rejects)
    report["term_scores"] = term_scores.num_rows

    with staged_folder(output) as folder:
        for name, table_rows in rows.items():
            metadata = template.metadata if name == "corpus" else None
            write_table(folder, name, _sorted_table(name, table_rows), metadata=metadata)
        write_vectors(folder / "document_vectors", sorted(documents), params.document_vectors)
        for name, of_datasets in tables.items():
            write_table(folder, name, *(of_datasets[dataset] for dataset in sorted(of_datasets)))
        write_table(folder, TERM_SCORES, term_scores)
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


def _count_unread(data: SourceData, template: DocumentTemplate) -> None:
    """Note how many documents have no text, or a topic, for this template; a topic that the title holds is read."""
    bare = sum(not template.text(row.title, row.topic, row.content) for row in data.documents)
    topics = sum(bool(row.topic) and row.topic.lower() not in row.title.lower() for row in data.documents)
    unread = 0 if template.names("topic") else topics
    data.facts |= {
        fact: count for fact, count in (("documents_without_text", bare), ("topics_unread", unread)) if count
    }


def _of_queries(datasets: Iterable[SourceData], name: str, query_ids: Collection[str]) -> dict[str, pa.Table]:
    """A table by data set, less rows of queries that the leakage guard rejected, which are counted."""
    tables: dict[str, pa.Table] = {}
    for data in datasets:
        if (table := getattr(data, name)) is not None:
            tables[data.name] = table.filter(among(table["query_id"], query_ids))
            if lost := table.num_rows - tables[data.name].num_rows:
                data.facts[f"{name}_of_left_out_queries"] = lost
    return tables


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


def _sorted_table(name: str, rows: Iterable[Any]) -> pa.Table:
    in_order = sorted(rows)
    return table_from_columns(name, ([getattr(row, column) for row in in_order] for column in SCHEMAS[name].names))


def read_unlabelled(path: Path, rejects: Rejects) -> list[Query]:
    """Read the file's distinct queries (after folding), their ids made from their text.

    Raises UserError when the file is a table by its ending, has no usable row, or too many rows are defect.
    """
    name = UNLABELLED_QUERIES
    if (kind := path.name.lower().removesuffix(".gz").rpartition(".")[2]) in _TABLE_ENDINGS:
        raise UserError(
            f"params.yaml: ingest.{name}: {path} is {kind.upper()}, whose rows would be read as queries whole; give a"
            " text file, a query on each line"
        )
    source = f"{name}/{path.name}"
    queries: dict[str, Query] = {}
    for line, raw, guard in rejects.guarded(read_lines(path), source, path):
        with guard:
            text = _query_text(raw)
            key = fold(text)
            if not key:
                raise Defect("empty_text")
            if key in queries:
                raise LeftOut("duplicate_text")
            queries[key] = Query(text_id(name, key), name, text, UNLABELLED, source, line)
    if not queries:
        raise UserError(f'{path}: holds no query; name another file in ingest.{name}, or "" for none')
    return list(queries.values())


def _query_text(raw: bytes) -> str:
    columns = decode(raw).split("\t")
    if len(columns) > 2:
        raise Defect("too_many_columns")
    text = columns[-1].strip()
    if len(text.split()) > MAX_QUERY_WORDS:
        raise LeftOut("query_too_long")
    return text


def read_term_scores(path: Path, rejects: Rejects) -> pa.Table:
    """The table `term_scores`, sorted by term; terms are lower-cased, of equal ones the first stays.

    Raises UserError when the file has no usable row, or too many rows are defect.
    """
    source = f"{TERM_SCORES}/{path.name}"
    scores: dict[str, float] = {}
    lines = ((line, raw) for line, raw in read_lines(path) if line > 1 or raw.lower() != b"term\tscore")
    for _, raw, guard in rejects.guarded(lines, source, path):
        with guard:
            term, score = _term_and_score(raw)
            if term in scores:
                raise Defect("duplicate_term")
            scores[term] = score
    if not scores:
        raise UserError(f'{path}: holds no term; name another file in ingest.term_scores, or "" for none')
    terms = sorted(scores)
    return pa.table([terms, [scores[term] for term in terms]], schema=SCHEMAS[TERM_SCORES])


def _term_and_score(raw: bytes) -> tuple[str, float]:
    columns = decode(raw).split("\t")
    if len(columns) != 2:
        raise Defect("missing_field" if len(columns) < 2 else "too_many_columns")
    term = words(columns[0])
    if len(term) != 1:
        raise Defect("not_one_word")
    try:
        score = float(columns[1])
    except ValueError:
        raise Defect("bad_score") from None
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.float32(score)
    if not (rounded > 0 and np.isfinite(rounded)):
        raise Defect("bad_score")
    return term[0], score
