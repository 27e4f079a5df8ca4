"""The cell `click`: what each training query was shown and what was clicked; associations and triplets from it."""

from typing import Any, NamedTuple

import ibis
import ibis.expr.types as ir

from slimtower.common.errors import UserError
from steps.mine.association import Associations, click_associations
from steps.mine.catalogue import SEED, keyed_rows, mixed
from steps.mine.cell import Cell, audit, used_queries
from steps.mine.engine import Engine, numbered
from steps.mine.params import DebiasParams
from steps.mine.propensity import Propensities, estimate, inverse_weights
from steps.mine.report import associating_terms, rows_by_source, samples, why_clicked
from steps.mine.triplets import (
    FIXED_POINT,
    Signal,
    judged_positives,
    mine_triplets,
    named_documents,
    tell_unused,
    triplet_positives,
)

CLIP = 10.0  # most that a click counts
MAX_PAIRS = 200_000  # of query and document, seen at two ranks or more, that propensities are estimated from
ITERATIONS = 1000  # steps of the estimate, at most
TOLERANCE = 1.0e-5  # the largest relative change of a propensity in a step at which it stops
LAST_RANK = 10  # with a propensity of its own, if results are shown there; ranks below it share this one's
CLICK_TOP_TERMS = 2  # how many of q1's terms must be important in q2, as in the paper
CLICK_SOURCES = ("click_one_hop", "click_multi_hop")
_EMPTY_LOG = "the log holds no impressions: nothing to mine, both tables are empty"


class Judgements(NamedTuple):
    """The log of the training queries."""

    table: ir.Table
    """(query, doc, shown, clicks, weight): one row for each document that a query was shown. Weight is in millionths
    of a click, each click divided by its rank's propensity where clicks are debiased."""
    impressions: int
    """Rows of the log."""
    dropped: dict[str, int]
    """Rows of the log left out, by reason."""
    propensities: Propensities | None
    """Estimated examination of the ranks, where clicks are debiased."""


def mine_clicks(cell: Cell) -> dict[str, Any]:
    """Write associations and triplets and return the report."""
    engine, tables, train = cell.engine, cell.tables, cell.train
    documents = cell.documents(tables["impressions"], *named_documents(tables["qrels"], tables["given_triplets"]))
    log = judgements(engine, tables["impressions"], cell.queries, documents, cell.params.debias)
    signal = click_signal(engine, log.table, documents)
    threshold = cell.params.click_threshold
    planned, associations = cell.associate(click_associations, signal, log.table, threshold, CLICK_TOP_TERMS)
    known_positives = judged_positives(engine, tables["qrels"], train, documents).union(
        triplet_positives(engine, tables["given_triplets"], train, documents)
    )
    mined = mine_triplets(engine, signal, associations.strongest, known_positives, documents, cell.params)
    tell_unused(mined, "click")
    leakage = audit(engine, used_queries(associations.strongest, mined.table), cell.queries, cell.source)
    cell.write(cell.association_rows(associations.strongest, "click"), cell.triplet_rows(mined.table, documents))

    rows = rows_by_source(engine, mined.table, CLICK_SOURCES)
    note = "" if any(rows.values()) else "no triplet came of the log: see impressions.dropped and dropped_positives"
    return {
        "note": note if log.impressions else _EMPTY_LOG,
        "rows": rows,
        "queries": {
            "train": engine.number(train.count()),
            "in_triplets": engine.number(mined.table.query.nunique()),
            "with_clicks": engine.number(signal.positives.query.nunique()),
        },
        "impressions": {"read": log.impressions, "dropped": log.dropped},
        "propensities": log.propensities
        and {
            "examination_by_rank": [round(value, 4) for value in log.propensities.values.tolist()],
            "pairs_used": log.propensities.pairs_used,
            "iterations": log.propensities.iterations,
        },
        "associations": association_facts(engine, associations, planned),
        "dropped_positives": mined.dropped,
        "refused_negatives": mined.refused_negatives,
        "leakage": {"clicks": leakage},
        "associating_terms": associating_terms(engine, associations.strongest, associations.top, planned),
        "associating_terms_relevance": [],
        "samples": samples(cell, mined.table, log.table, why_clicked, documents, (planned, associations.top)),
    }


def click_signal(engine: Engine, judged: ir.Table, documents: ir.Table) -> Signal:
    """Clicked documents as positives, shown and not clicked ones as candidates for hard negatives."""
    texts = documents.select("doc", "text_key")
    clicked = judged.filter(judged.clicks > 0)
    weighed = clicked.select("query", "doc", "weight", click_weight=clicked.weight // clicked.clicks)
    positives = weighed.join(texts, "doc")
    ignored = judged.filter(judged.clicks == 0).select("query", "doc").join(texts, "doc")
    return Signal("click", engine.keep(positives), engine.keep(ignored))


def judgements(
    engine: Engine, impressions: ir.Table, queries: ir.Table, documents: ir.Table, debias: DebiasParams
) -> Judgements:
    """Count what each training query was shown and what was clicked; rows of other queries are left out and counted.

    UserError when a training query's impression is not older than every impression of its data set's test queries.
    """
    columns = ["clicked", "rank", "timestamp"]
    rows, dropped = keyed_rows(engine, impressions, queries, documents, columns)
    _check_time(engine, rows)

    used = rows.filter(rows.reason == "")
    clicks = used.clicked.cast("int64").sum()
    propensities = None
    if debias.method == "none":
        pairs = used.group_by("query", "doc").aggregate(shown=used.count(), clicks=clicks, weight=clicks * FIXED_POINT)
    else:
        last = min(LAST_RANK, engine.number(used["rank"].cast("int64").max()))
        rank = ibis.least(used["rank"].cast("int64"), ibis.literal(last, "int64"))
        at_rank = used.group_by("query", "doc", place=rank).aggregate(shown=used.count(), clicks=clicks)
        at_rank = engine.keep(at_rank)
        propensities = _estimated(engine, at_rank, last)
        weights = [round(weight * FIXED_POINT) for weight in inverse_weights(propensities, CLIP).tolist()]
        at_ranks = ((at_rank.place == rank, weight) for rank, weight in enumerate(weights, start=1))
        of_click = ibis.cases(*at_ranks, else_=0)
        pairs = at_rank.group_by("query", "doc").aggregate(
            shown=at_rank.shown.sum(), clicks=at_rank.clicks.sum(), weight=(at_rank.clicks * of_click).sum()
        )
    return Judgements(engine.keep(pairs), engine.number(rows.count()), dropped, propensities)


def _estimated(engine: Engine, at_rank: ir.Table, last: int) -> Propensities:
    """Examination of the ranks to `last`, from a seeded sample of the clicked pairs that were shown at two or more."""
    moved = at_rank.group_by("query", "doc").aggregate(ranks=at_rank.place.nunique(), clicks=at_rank.clicks.sum())
    moved = moved.filter((moved.ranks > 1) & (moved.clicks > 0)).drop("clicks")
    moved = moved.mutate(number=mixed(SEED, moved.query, moved.doc))
    sample = engine.keep(moved.order_by("number", "query", "doc").limit(MAX_PAIRS))
    pairs = numbered(sample, [], ["number", "query", "doc"]).select("query", "doc", pair="place")
    columns = ["shown", "clicks", "pair", "place"]
    rows = engine.rows(at_rank.join(pairs, ["query", "doc"]).select(columns).order_by("pair", "place"))
    log = (rows[name].to_numpy().astype("int64") for name in columns)
    return estimate(*log, iterations=ITERATIONS, tolerance=TOLERANCE, max_rank=last)


def _check_time(engine: Engine, rows: ir.Table) -> None:
    kind = ibis.cases((rows.reason == "", "train"), (rows.reason == "test_query", "test"), else_="")
    spans = rows.group_by("dataset", kind=kind).aggregate(first=rows.timestamp.min(), last=rows.timestamp.max())
    span_by_kind = {(row["dataset"], row["kind"]): row for row in engine.rows(spans).to_pylist()}
    for (dataset, kind_), span in sorted(span_by_kind.items(), key=str):
        test = span_by_kind.get((dataset, "test"))
        if kind_ == "train" and test is not None and span["last"] >= test["first"]:
            raise UserError(
                f"impressions of {dataset}: a training query was shown results at {span['last']}, after the first test"
                f" query at {test['first']} (unix seconds): the past would be tested with the future; set test_from of"
                " the source in params.yaml and run ingest again"
            )


def association_facts(engine: Engine, associations: Associations, planned: ir.Table) -> dict[str, Any]:
    """How many associations there are, and how many the cap cut."""
    number, total = engine.number(associations.strongest.count()), associations.total
    return {
        "kept": number,
        "per_query": round(number / max(engine.number(planned["query"].nunique()), 1), 4),
        "queries_with_any": engine.number(associations.strongest["query"].nunique()),
        "found": total,
        "cut_share": round(1 - number / total, 6) if total else 0.0,
    }
