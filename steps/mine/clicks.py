"""The click log as judgements: what each training query was shown and what was clicked."""

from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from slimtower.common.errors import UserError
from steps.mine.engine import Engine
from steps.mine.keys import mixed
from steps.mine.params import DebiasParams
from steps.mine.propensity import Propensities, estimate, inverse_weights

CLIP = 10.0  # most that a click counts
MAX_PAIRS = 200_000  # of query and document, seen at two ranks or more, that propensities are estimated from
ITERATIONS = 1000  # steps of the estimate, at most
TOLERANCE = 1.0e-5  # the largest relative change of a propensity in a step at which it stops
FIXED_POINT = 1_000_000  # the weight of one click, fixed-point: sums of integers do not depend on their order


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


def judgements(
    engine: Engine, impressions: ir.Table, queries: ir.Table, documents: ir.Table, debias: DebiasParams, *, seed: int
) -> Judgements:
    """Count what each training query was shown and what was clicked; rows of other queries are left out and counted.

    UserError when a training query's impression is not older than every impression of its data set's test queries.
    """
    whose = queries.select("query", "query_id", "split", "dataset")
    joined = impressions.left_join(whose, "query_id").select(impressions, "query", "split", "dataset")
    joined = joined.left_join(documents.select("doc", "doc_id"), "doc_id").select(joined, "doc")
    split = joined.split.fill_null("unlabelled")  # the table of queries has only those of a split
    reason = ibis.cases((split != "train", split + "_query"), (joined.doc.isnull(), "unknown_document"), else_="")
    rows = engine.keep(joined.select("query", "doc", "clicked", "rank", "timestamp", "split", "dataset", reason=reason))
    counts = rows.group_by("reason").aggregate(rows=lambda t: t.count())
    by_reason = {row["reason"]: row["rows"] for row in engine.rows(counts).to_pylist()}
    _check_time(engine, rows)

    used = rows.filter(rows.reason == "")
    clicks = used.clicked.cast("int64").sum()
    propensities = None
    if debias.method == "none":
        pairs = used.group_by("query", "doc").aggregate(shown=used.count(), clicks=clicks, weight=clicks * FIXED_POINT)
    else:
        rank = ibis.least(used["rank"].cast("int64"), ibis.literal(debias.max_rank, "int64"))
        at_rank = used.group_by("query", "doc", place=rank).aggregate(shown=used.count(), clicks=clicks)
        at_rank = engine.keep(at_rank)
        propensities = _propensities(engine, at_rank, debias, seed)
        weights = [round(weight * FIXED_POINT) for weight in inverse_weights(propensities, CLIP).tolist()]
        at_ranks = ((at_rank.place == rank, weight) for rank, weight in enumerate(weights, start=1))
        of_click = ibis.cases(*at_ranks, else_=0)
        pairs = at_rank.group_by("query", "doc").aggregate(
            shown=at_rank.shown.sum(), clicks=at_rank.clicks.sum(), weight=(at_rank.clicks * of_click).sum()
        )
    dropped = {name: by_reason[name] for name in sorted(by_reason) if name}
    return Judgements(engine.keep(pairs), sum(by_reason.values()), dropped, propensities)


def _propensities(engine: Engine, at_rank: ir.Table, debias: DebiasParams, seed: int) -> Propensities:
    """Examination of the ranks, from a seeded sample of the pairs that were clicked and shown at two ranks or more."""
    moved = at_rank.group_by("query", "doc").aggregate(ranks=at_rank.place.nunique(), clicks=at_rank.clicks.sum())
    moved = moved.filter((moved.ranks > 1) & (moved.clicks > 0)).drop("clicks")
    moved = moved.mutate(number=mixed(seed, moved.query, moved.doc))
    sample = engine.keep(moved.order_by("number", "query", "doc").limit(MAX_PAIRS))
    numbered = sample.mutate(pair=ibis.row_number().over(ibis.window(order_by=["number", "query", "doc"])))
    rows = engine.rows(
        at_rank.join(numbered, ["query", "doc"]).select("pair", "place", "shown", "clicks").order_by("pair", "place")
    )
    impressions, clicked, pair, rank = (
        rows[name].to_numpy().astype("int64") for name in ("shown", "clicks", "pair", "place")
    )
    return estimate(
        impressions,
        clicked,
        pair,
        rank,
        iterations=ITERATIONS,
        tolerance=TOLERANCE,
        max_rank=debias.max_rank,
    )


def _check_time(engine: Engine, rows: ir.Table) -> None:
    """Test data must be later than training data: UserError otherwise."""
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
