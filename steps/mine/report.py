"""The mining report: how many rows of which source, what was left out and why, and examples that a person can judge."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import ibis
import ibis.expr.types as ir

from steps.mine.catalogue import SEED, mixed
from steps.mine.cell import Cell
from steps.mine.engine import Engine

SAMPLES = 20
_TERMS = 20
_SNIPPET = 240  # characters of a document shown in a sample
_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")

Row = dict[str, Any]
Explain = Callable[[str, Row, Row], str]
"""(who holds the evidence, its row on the positive, its row on the negative) -> why the triplet exists."""


def associating_terms(engine: Engine, associations: ir.Table, top: ir.Table, importances: ir.Table) -> list[Row]:
    """The terms that decide most associations: [{term, associations}]."""
    deciding = associations.join(top, "query").group_by("term").aggregate(associations=lambda t: t.count())
    most_frequent = engine.keep(deciding.order_by(ibis.desc("associations"), "term").limit(_TERMS))
    words = importances.semi_join(most_frequent, "term").select("term", "word").distinct()
    named = most_frequent.join(words, "term").order_by(ibis.desc("associations"), "word").select("word", "associations")
    return [{"term": row["word"], "associations": row["associations"]} for row in engine.rows(named).to_pylist()]


def rows_by_source(engine: Engine, triplets: ir.Table, sources: Iterable[str]) -> dict[str, int]:
    """Triplets of each of these sources, zeros included."""
    by_source = engine.counts(triplets, "source")
    return {source: by_source.get(source, 0) for source in sources}


def merged_samples(new: list[Row], earlier: list[Row]) -> list[Row]:
    """New samples before those of earlier cells, half of SAMPLES each where both have as many."""
    return (new[: max(SAMPLES - len(earlier), SAMPLES // 2)] + earlier)[:SAMPLES]


def samples(
    cell: Cell,
    triplets: ir.Table,
    evidence: ir.Table,
    explain: Explain,
    documents: ir.Table,
    planned: tuple[ir.Table, ir.Table] | None = None,
) -> list[Row]:
    """A seeded sample of triplets, evenly over the sources, with texts and the reason why each exists.

    evidence: (query, doc, ...), what a query says of a document; `explain` puts it into words. planned: importances
    and top terms, where queries were associated.
    """
    engine = cell.engine
    numbered = triplets.mutate(number=mixed(SEED, triplets.query, triplets.positive))
    ordered = numbered.order_by("number", "query", "positive", "negative")
    samples_by_source = [
        engine.rows(ordered.filter(ordered.source == source).limit(SAMPLES)).to_pylist()
        for source in engine.counts(triplets, "source")
    ]
    chosen = [row for turn in zip_longest(*samples_by_source) for row in turn if row is not None][:SAMPLES]
    if not chosen:
        return []
    query_keys = sorted({row[name] for row in chosen for name in ("query", "via")} - {None})
    doc_keys = sorted({row[name] for row in chosen for name in ("positive", "negative")})

    def rows_of(table: ir.Table) -> list[Row]:
        return list(engine.rows(table.filter(table.query.isin(query_keys))).to_pylist())

    query_of = {
        row["query"]: {"id": row["query_id"], "text": row["text"]}
        for row in rows_of(cell.queries.select("query", "query_id", "text"))
    }
    named = documents.filter(documents.doc.isin(doc_keys)).select("doc", "doc_id")
    document_of = {
        row["doc"]: {"id": row["doc_id"], "title": row["title"], "content": row["content"][:_SNIPPET]}
        for row in engine.rows(named.join(cell.tables["corpus"], "doc_id")).to_pylist()
    }
    seen = {(row["query"], row["doc"]): row for row in rows_of(evidence)}
    shares: dict[tuple[int, int], Row] = {}
    top_of: dict[int, list[int]] = {}
    if planned:
        importances, top = planned
        shares = {(row["query"], row["term"]): row for row in rows_of(importances)}
        for row in rows_of(top):
            top_of.setdefault(row["query"], []).append(row["term"])

    def sample(row: Row) -> Row:
        source_query = row["query"] if row["via"] is None else row["via"]
        who = "this query" if row["via"] is None else "the query it came through"
        why = explain(who, seen[source_query, row["positive"]], seen[source_query, row["negative"]])
        if row["via"] is not None:
            terms = (shares[source_query, term] for term in top_of[row["query"]])
            listed = ", ".join(sorted(f"{share['word']} {share['importance']:.2f}" for share in terms))
            why += f"; importance there of this query's top terms: {listed}"
        return {
            "source": row["source"],
            "query": query_of[row["query"]],
            "via_query": None if row["via"] is None else query_of[source_query],
            "positive": document_of[row["positive"]],
            "negative": document_of[row["negative"]],
            "weight": round(row["weight"], 6),
            "why": why,
        }

    return [sample(row) for row in chosen]


def why_clicked(who: str, positive: Row, negative: Row) -> str:
    """A click triplet's reason."""
    return (
        f"{who} clicked the positive {positive['clicks']} times in {positive['shown']} impressions"
        f" and the negative never in {negative['shown']}"
    )


def why_judged(who: str, positive: Row, negative: Row) -> str:
    """A judged triplet's reason."""
    placed = "" if negative["rank"] is None else f", found at rank {negative['rank']} of the candidates"
    judged = "not judged" if negative["grade"] is None else f"judged {negative['grade']}"
    return f"for {who} the positive is judged {positive['grade']} and the negative {judged}{placed}"


def why_relevant(who: str, positive: Row, negative: Row) -> str:
    """A relevance triplet's reason."""
    return (
        f"for {who} the ranker scored the positive best ({positive['score']:.3g})"
        f" and placed the negative {negative['rank']} ({negative['score']:.3g})"
    )


def as_text(report: Mapping[str, Any]) -> str:
    """The report as a page of Markdown."""
    lines = ["# What was mined", ""]
    if report["note"]:
        lines += [f"**{report['note']}**", ""]
    lines += ["| source | triplets |", "|---|---|"]
    lines += [f"| {source.replace('_', ' ')} | {rows:,} |" for source, rows in report["rows"].items()]
    for title, key in (
        ("Queries", "queries"),
        ("Impressions", "impressions"),
        ("Judgements", "judgements"),
        ("Relevance scores", "scores"),
        ("Propensities", "propensities"),
        ("Associations", "associations"),
        ("Positives that became no triplet", "dropped_positives"),
        ("Refused as hard negatives", "refused_negatives"),
        ("Leakage audit", "leakage"),
    ):
        if report.get(key):
            lines += ["", f"## {title}", "", *_list(report[key])]
    for signal, key in (("clicks", "associating_terms"), ("relevance", "associating_terms_relevance")):
        if terms := report[key]:
            lines += ["", f"## Terms that associate most, by {signal}", ""]
            lines += [f"- {row['term']}: {row['associations']:,}" for row in terms]
    lines += ["", f"## {len(report['samples'])} triplets", ""]
    for number, row in enumerate(report["samples"], start=1):
        via = f" via “{_plain(row['via_query']['text'])}”" if row["via_query"] else ""
        lines += [
            f"{number}. **{_plain(row['query']['text'])}**{via}"
            f" ({row['source'].replace('_', ' ')}, weight {row['weight']:g})",
            f"   - positive: {_document(row['positive'])}",
            f"   - hard negative: {_document(row['negative'])}",
            f"   - why: {_plain(row['why'])}",
        ]
    return "\n".join(lines) + "\n"


def _list(values: Mapping[str, Any], depth: int = 0) -> list[str]:
    lines: list[str] = []
    for key, value in values.items():
        start = f"{'  ' * depth}- {key.replace('_', ' ')}:"
        if isinstance(value, Mapping):
            lines += [start, *_list(value, depth + 1)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines.append(f"{start} {', '.join(str(item) for item in value)}")
        else:
            lines.append(f"{start} {value:,}" if isinstance(value, int) else f"{start} {value}")
    return lines


def _document(document: Mapping[str, str]) -> str:
    title, content = _plain(document["title"]), _plain(document["content"])
    return f"{title} — {content}" if title else content


def _plain(text: str) -> str:
    """A text of the data on one line, its signs that are Markdown or HTML escaped."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
