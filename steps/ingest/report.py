"""What ingest says about its outputs: counts per data set and split, rejects, the corpus digest."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from steps.core.corpus import corpus_digest
from steps.ingest.coded_columns import distinct
from steps.ingest.pool import POOL
from steps.ingest.rejects import Rejects
from steps.ingest.source_data import Document, Judgement, Query


def _digest(documents: Iterable[Document]) -> str:
    return corpus_digest((item.doc_id, item.title, item.topic, item.content) for item in documents)


def build_report(
    documents: Sequence[Document],
    queries: Sequence[Query],
    judgements: Sequence[Judgement],
    impressions: Mapping[str, pa.Table],
    simulated: Collection[str],
    facts: dict[str, dict[str, Any]],
    rejects: Rejects,
) -> dict[str, Any]:
    """The report; `facts` has an entry for every data set, `impressions` for those with sessions.

    `simulated` names the data sets whose sessions no person made.
    """
    datasets: dict[str, dict[str, Any]] = {}
    for name in sorted(facts):
        own = [document for document in documents if document.dataset == name]
        entry: dict[str, Any] = {
            "documents": len(own),
            "corpus_digest": _digest(own),
            "queries": dict(Counter(query.split for query in queries if query.dataset == name)),
            "qrels": dict(Counter(row.split for row in judgements if row.dataset == name)),
            **facts.get(name, {}),
        }
        if name in impressions:
            table = impressions[name]
            entry["sessions"] = {
                "simulated": name in simulated,
                "sessions": distinct(table["session_id"]),
                "impressions": table.num_rows,
                "clicks": pc.sum(table["clicked"]).as_py() or 0,
            }
        datasets[name] = entry
    return {
        "simulated": not impressions.keys().isdisjoint(simulated),
        "corpus_digest": _digest(documents),
        "datasets": datasets,
        "pool_queries": sum(query.dataset == POOL for query in queries),
        "rejects": rejects.report(),
    }


def metrics(report: dict[str, Any]) -> dict[str, float]:
    """The counts of a report as flat metrics: `<dataset>.documents`, `<dataset>.queries.<split>`, ..."""
    flat: dict[str, float] = {"pool.queries": report["pool_queries"]}
    for name, entry in report["datasets"].items():
        flat[f"{name}.documents"] = entry["documents"]
        for kind in ("queries", "qrels"):
            flat |= {f"{name}.{kind}.{split}": count for split, count in entry[kind].items()}
        if "sessions" in entry:
            flat[f"{name}.impressions"] = entry["sessions"]["impressions"]
            flat[f"{name}.clicks"] = entry["sessions"]["clicks"]
    return flat | {f"rejects.{reason}": entry["rows"] for reason, entry in report["rejects"].items()}
