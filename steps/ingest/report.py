"""What ingest says about its outputs: counts per data set and split, rejects, the corpus digest."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from slimtower.common.files import sha256_text
from steps.core.corpus import corpus_digest
from steps.ingest.coded_columns import distinct
from steps.ingest.rejects import Rejects
from steps.ingest.search_log import OF_FREQUENT_QUERIES, OF_LONG_SESSIONS, REPEATED, search_numbers
from steps.ingest.source import (
    ANSWERED_UNJUDGED,
    MAX_QUERY_IMPRESSIONS,
    UNLABELLED,
    UNLABELLED_QUERIES,
    Document,
    Judgement,
    Query,
    SourceData,
)

_SPLITS = ("train", "dev", "test", UNLABELLED)
_IMPRESSIONS = {
    REPEATED: "that the log holds more than once counted once",
    OF_LONG_SESSIONS: "of sessions above max_session_impressions left out (do people share a session_id or client_id?"
    " then raise it)",
    OF_FREQUENT_QUERIES: f"of queries that have more than {MAX_QUERY_IMPRESSIONS:,} left out",
}
_SEARCHES = {
    "of_robots": "of robots",
    "after_test_from": "after test_from of a query first asked before it",
    "query_without_click": "of a dev or test query without a click",
    "nothing_shown": "that showed nothing known",
    "outside_window": "outside the window",
    "unusable": "unusable",
    "of_another_evaluation": "of a query that another data set judges",
}


def _digest(documents: Iterable[Document]) -> str:
    return corpus_digest((item.doc_id, item.title, item.topic, item.content) for item in documents)


def build_report(
    sources: Sequence[SourceData],
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    tables: Mapping[str, Mapping[str, pa.Table]],
    simulated: Collection[str],
    rejects: Rejects,
) -> dict[str, Any]:
    """The report; `tables` by name and data set, `simulated` names the data sets whose sessions no person made."""
    datasets: dict[str, dict[str, Any]] = {}
    impressions, triplets = tables["impressions"], tables["given_triplets"]
    for data in sorted(sources, key=lambda data: data.name):
        entry: dict[str, Any] = {
            "documents": len(data.documents),
            "corpus_digest": _digest(data.documents),
            "queries": dict(Counter(query.split for query in queries if query.dataset == data.name)),
            "qrels": dict(Counter(row.split for row in judgements if row.dataset == data.name)),
            **data.facts,
        }
        if data.name in impressions:
            table = impressions[data.name]
            entry["sessions"] = {
                "simulated": data.name in simulated,
                "sessions": distinct(table["session_id"]),
                "impressions": table.num_rows,
                "clicks": pc.sum(table["clicked"]).as_py() or 0,
            }
            if "searches" in entry:
                entry |= _of_another_evaluation(entry, table)
        if data.name in triplets:
            entry["given_triplets"] = triplets[data.name].num_rows
        datasets[data.name] = entry
    return {
        "simulated": not impressions.keys().isdisjoint(simulated),
        "corpus_digest": _digest(document for data in sources for document in data.documents),
        "datasets": datasets,
        UNLABELLED_QUERIES: sum(query.dataset == UNLABELLED_QUERIES for query in queries),
        "given_triplets": sum(table.num_rows for table in triplets.values()),
        "rejects": rejects.report(),
    }


def _of_another_evaluation(entry: dict[str, Any], table: pa.Table) -> dict[str, Any]:
    """Entries on what the leakage guard took of a log after it had been counted."""
    used, clicks = entry["searches"]["used"]
    lost = entry.pop("queries_counted") - sum(entry["queries"].values())
    searches = int(search_numbers(table["session_id"], table["query_id"]).max(initial=-1)) + 1 if lost else used
    remaining = [searches, entry["sessions"]["clicks"]]
    left_out = entry["searches"]["left_out"] | {"of_another_evaluation": [used - remaining[0], clicks - remaining[1]]}
    return {
        "searches": {"used": remaining, "left_out": left_out},
        "queries_of_another_evaluation": lost,
    }


def summary(report: Mapping[str, Any]) -> list[str]:
    """A line for each data set of a report, on topics that go unused, and for the file of unlabelled queries."""
    lines = [f"{name}: {', '.join(_clauses(entry))}" for name, entry in report["datasets"].items()]
    for name, entry in report["datasets"].items():
        if unread := entry.get("topics_unread"):
            lines.append(
                f"{name}: {unread:,} documents have a topic that nothing reads: ingest.document does not name it; if"
                ' topics help, set "{title} {topic} {content}"'
            )
        lines += _account(name, entry)
    if count := report[UNLABELLED_QUERIES]:
        lines.append(f"{UNLABELLED_QUERIES}: {count:,} queries")
    if rejects := report["rejects"]:
        listed = ", ".join(
            f"{entry_of_reason['rows']:,} {reason}" for reason, entry_of_reason in sorted(rejects.items())
        )
        lines.append(f"rows left out: {listed} (rejects.parquet has them)")
    return lines


def _account(name: str, entry: Mapping[str, Any]) -> list[str]:
    """Two lines that add up: searches with their clicks, and queries; of the entry of a log in the report."""
    if not (searches := entry.get("searches")):
        return []
    parts = [(searches["used"], "used")]
    parts += [(counts, _SEARCHES[reason]) for reason, counts in searches["left_out"].items() if any(counts)]
    totals = [sum(counts[at] for counts, _ in parts) for at in (0, 1)]
    listed = " + ".join(f"{count:,} ({clicks:,}) {label}" for (count, clicks), label in parts)
    lines = [f"{name}: searches (clicks): {totals[0]:,} ({totals[1]:,}) read = {listed}"]
    queries = {split: count for split, count in entry["queries"].items() if count}
    queries |= {label.replace("_", " "): count for label, count in entry.get("queries_left_out", {}).items() if count}
    if foreign := entry.get("queries_of_another_evaluation"):
        queries["that another data set judges"] = foreign
    listed = " + ".join(f"{count:,} {label}" for label, count in queries.items())
    return [*lines, f"{name}: queries: {sum(queries.values()):,} read = {listed}"]


def _clauses(entry: Mapping[str, Any]) -> list[str]:
    queries = entry["queries"]
    named = [f"{queries[split]:,} {split}" for split in _SPLITS if queries.get(split)]
    clauses = [
        f"{entry['documents']:,} documents",
        f"{sum(queries.values()):,} queries ({', '.join(named)})" if named else "no queries",
    ]
    if bare := entry.get("documents_without_text"):
        clauses.append(f"{bare:,} documents without text (ingest.document takes none of the fields that they have)")
    if sessions := entry.get("sessions"):
        simulated = " simulated" if sessions["simulated"] else ""
        clauses.append(f"{sessions['sessions']:,}{simulated} sessions with {sessions['clicks']:,} clicks")
    left_out = entry.get("impressions_left_out", {})
    for reason, clause in _IMPRESSIONS.items():
        if count := left_out.get(reason):
            clauses.append(f"{count:,} impressions {clause}")
    if entry["qrels"].get("test"):
        by = " by clicks" if entry.get("judgements_from_clicks") else ""
        clauses.append(f"{entry['qrels']['test']:,} test judgements{by}")
    else:
        clauses.append("no test query judged" if entry["qrels"] else "nothing judged")
    if below := entry.get("train_judgements_below_relevant_from"):
        clauses.append(f"{below:,} training judgements below relevant_from count as not relevant")
    if "given_triplets" in entry:
        clauses.append(f"{entry['given_triplets']:,} given triplets")
    if other_files := entry.get("other_qrels_rows"):
        files = ", ".join(f"qrels/{name}" for name in sorted(other_files))
        clauses.append(f"{files} not read (judgements are train.tsv, dev.tsv and test.tsv), its queries left out")
    if answered := entry.get("queries_left_out", {}).get(ANSWERED_UNJUDGED):
        clauses.append(
            f"{answered:,} queries that answers.jsonl names and no judgement left out: neither trained on nor measured"
            " (for Answer@k judge a document of each)"
        )
    return clauses


def data_digest(entry: Mapping[str, Any], queries: Iterable[Query], judgements: Iterable[Judgement]) -> str:
    """Hex sha256 of a data set, its entry in the report and its rows in any order; of sessions it knows the counts."""
    rows = [entry["corpus_digest"], str(entry.get("sessions"))]
    rows += sorted(f"{row.query_id}\0{row.split}\0{row.text}" for row in queries)
    rows += sorted(f"{row.query_id}\0{row.doc_id}\0{row.grade}" for row in judgements)
    return sha256_text("\0\0".join(rows))


def counts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """How much a data set's entry says there is."""
    return {key: entry[key] for key in ("documents", "queries", "qrels", "sessions", "given_triplets") if key in entry}


def metrics(report: dict[str, Any]) -> dict[str, float]:
    """The counts of a report as flat metrics: `<dataset>.documents`, `<dataset>.queries.<split>`, ..."""
    flat: dict[str, float] = {UNLABELLED_QUERIES: report[UNLABELLED_QUERIES]}
    for name, entry in report["datasets"].items():
        flat[f"{name}.documents"] = entry["documents"]
        for kind in ("queries", "qrels"):
            flat |= {f"{name}.{kind}.{split}": count for split, count in entry[kind].items()}
        if "sessions" in entry:
            flat[f"{name}.impressions"] = entry["sessions"]["impressions"]
            flat[f"{name}.clicks"] = entry["sessions"]["clicks"]
        if "given_triplets" in entry:
            flat[f"{name}.given_triplets"] = entry["given_triplets"]
    return flat | {f"rejects.{reason}": entry["rows"] for reason, entry in report["rejects"].items()}
