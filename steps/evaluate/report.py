"""`reports/report.html`: one self-contained page, the answer first and what only researchers read folded."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from slimtower.common.files import staged_file
from steps.evaluate.background import Background
from steps.evaluate.choice import choice_lines
from steps.evaluate.comparing import seed_lines, significant
from steps.evaluate.drawing import NARROW, WIDE, draw_frontier
from steps.evaluate.figures import shown_figures
from steps.evaluate.formatting import as_html, format_measure, milliseconds, percent, size, times
from steps.evaluate.frontier import bm25_share, by_set, by_speed, message, panels, table_rows, worst_slices
from steps.evaluate.gains import gain_lines
from steps.evaluate.insight import Insight
from steps.evaluate.latency import processor
from steps.evaluate.metrics import Metrics
from steps.evaluate.served import behind_api, fusing, served_name
from steps.evaluate.summary import measured, share_of
from steps.evaluate.systems import BM25, TEACHER, fused_name
from steps.evaluate.verdict import headline, left_out_lines, verdict_lines
from steps.retrieval.dataset_groups import counted_sets, units

_API_NOTE = " The teacher is behind an API: its time is that of requests, which nothing here computes."


def write_report(path: Path, metrics: Metrics, best: str, background: Background, insight: Insight) -> None:
    """Render the page; every number in it comes from the metrics or from an earlier stage's report.

    If nothing is judged, the page tells how close students are to the teacher, and draws nothing.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (percent, significant, format_measure, size, milliseconds, times, fused_name)
    environment.filters |= {function.__name__: function for function in formats}
    rows, students = table_rows(metrics), [model for model in by_speed(metrics) if model != TEACHER]
    models, rerankers = _models(metrics)
    page = environment.get_template("report.html.j2").render(
        metrics=metrics,
        measures=measured(metrics),
        quality=counted_sets(metrics),
        quality_dev=counted_sets(metrics, "datasets_dev"),
        size_of=partial(_size_of, metrics),
        share_of=partial(share_of, metrics),
        students=students,
        served=metrics["served"],
        rows=rows,
        best_row=_best_row(metrics),
        by_set=by_set(metrics),
        message=message(metrics) if rows else (),
        losses=worst_slices(metrics, best),
        unread=sorted(name for name, sizes in metrics["queries"].items() if "test" in sizes and "dev" not in sizes),
        models=models,
        rerankers=rerankers,
        best=best,
        insight=insight,
        headline=headline(metrics),
        verdict_lines=verdict_lines(metrics, best),
        fusing=partial(fusing, metrics),
        served_name=partial(served_name, metrics),
        unchosen=_unchosen(metrics),
        worst_set=partial(_worst_set, metrics),
        frontier=_frontier(metrics),
        sections=partial(_sections, metrics, insight),
        choice=[*choice_lines(metrics), *seed_lines(metrics), *left_out_lines(metrics)],
        gains=gain_lines(metrics),
        background=background,
        processor=processor(),
        api_note=_API_NOTE if behind_api(metrics) else "",
    )
    with staged_file(path) as staging:
        staging.write_text(label_cells(page), encoding="utf-8")


def label_cells(page: str) -> str:
    """Give each cell of the tables that stack the name of its column: on a phone, cells stand below each other."""

    def label_table(table: re.Match[str]) -> str:
        heads = [escape(Markup(head).striptags()) for head in re.findall(r"<th>(.*?)</th>", table[0], re.S)]

        def label_row(row: re.Match[str]) -> str:
            names = iter(heads)
            return re.sub(r"<td\b", lambda _: f'<td data-label="{next(names)}"', row[0])

        return re.sub(r"<tr\b.*?</tr>", label_row, table[0], flags=re.S)

    return re.sub(r'<table class="[^"]*\bstack">.*?</table>', label_table, page, flags=re.S)


def _best_row(metrics: Metrics) -> str:
    """The table's row of the chosen student as its release answers; "" if none was chosen."""
    student = metrics["choice"]["student"]
    if student and set(fusing(metrics, student)) == set(metrics["datasets"]):
        return f"{student} with BM25"
    return student or ""


def _models(metrics: Metrics) -> tuple[list[str], list[str]]:
    """The systems in the order in which they are shown, and the re-rankers, which come first.

    Those without a latency precede the others. Behind a dense model comes what fuses it with BM25, if it was measured.
    """
    measured = {model for models in metrics["datasets"].values() for model in models}
    alone = [BM25, *metrics["gain_overall"]]
    dense = [name for model in by_speed(metrics) for name in (model, fused_name(model))]
    rerankers = sorted(measured - {*alone, *dense})  # they are none of the others
    measured_dense = [name for name in dense if name in measured or name in metrics["latency"]]
    return [*rerankers, *alone, *measured_dense], rerankers


def _size_of(metrics: Metrics, dataset: str, split: str) -> int:
    members = [sizes for name, sizes in metrics["queries"].items() if dataset in units([name], [dataset])]
    return sum(sizes.get(split, 0) for sizes in members)


def _unchosen(metrics: Metrics) -> list[str]:
    """Data sets of which dev queries chose no fusion of some system."""
    fused: dict[str, dict[str, Any]] = metrics["fused"]
    return sorted(name for name, row in fused.items() if any(figures["dev"] is None for figures in row.values()))


def _worst_set(metrics: Metrics, student: str) -> str:
    return min(metrics["retention_by_set"], key=lambda name: metrics["retention_by_set"][name][student]["ratio"])


def _frontier(metrics: Metrics) -> Markup:
    bm25 = bm25_share(metrics)
    widths = () if bm25 is None else (("wide", WIDE), ("narrow", NARROW))
    return Markup("").join(
        Markup('<div class="{}">{}</div>').format(name, Markup(draw_frontier(panels(metrics), bm25 or 0.0, width)))
        for name, width in widths
    )


def _sections(metrics: Metrics, insight: Insight, part: str) -> Markup:
    """The figures of a part of the page, each below its title; nothing if none was measured."""
    return Markup("\n").join(
        Markup("<h{0}>{1}</h{0}>\n{2}").format(2 if part == "unjudged" else 3, figure.title, as_html(blocks))
        for figure, blocks in shown_figures(metrics, insight.measured)
        if figure.part == part
    )
