"""`reports/report.html`: one self-contained page, the answer first and what only researchers read folded.

Beside the measurements it says what the earlier stages' own reports say, examples, and where the numbers come from.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from slimtower.common.errors import TransientError
from slimtower.common.files import read_json, sha256_file, staged_file
from steps.core.measures import counted_sets, units
from steps.core.tables import table_path
from steps.evaluate.choice import choice_lines
from steps.evaluate.comparing import seed_lines, significant
from steps.evaluate.drawing import NARROW, WIDE, draw_frontier
from steps.evaluate.figures import shown_figures
from steps.evaluate.formatting import as_html, format_measure, milliseconds, percent, size, times
from steps.evaluate.frontier import by_set, by_speed, kept_of_teacher, message, panels, table_rows, worst_slices
from steps.evaluate.gains import gain_lines
from steps.evaluate.insight import Insight
from steps.evaluate.judging import Folders
from steps.evaluate.latency import processor
from steps.evaluate.metrics import Metrics
from steps.evaluate.summary import measured, share_of
from steps.evaluate.systems import BM25, TEACHER, behind_api, fused_name, fusing, served_name
from steps.evaluate.verdict import headline, left_out_lines, verdict_lines
from steps.tracking.run_ids import git_commit
from steps.tracking.runs import Run

_API_NOTE = " The teacher is behind an API: its time is that of requests, which nothing here computes."
_EXAMPLES = 4
_CUT = 0.01  # share of documents from which on the report says that the teacher does not read them to their end
_REPORT = "report.json"
_DIGEST_LENGTH = 32  # a text this long without a space is a digest: of use in a manifest, not to a reader
_LONGEST = 120

Facts = list[tuple[str, str]]
_BORROWED = "borrowed from another query that shares important terms with this one"
_SOURCES = {  # of mined triplets, in the order in which they are told
    "click_one_hop": "the positive was clicked{simulated}; the negative was shown for the query and never clicked",
    "click_multi_hop": _BORROWED + "{simulated}",
    "judged": "the positive is judged relevant; the negative is judged irrelevant, or is a hit that nobody judged",
    "relevance_one_hop": "the positive scores best for the query, and the negative scores far lower",
    "relevance_multi_hop": _BORROWED,
    "given": "as a data set brought it",
}


@dataclass(frozen=True)
class Background:
    """What the report tells beside the measurements."""

    simulated: Sequence[str]
    """Data sets whose sessions no person made."""
    judged_by_clicks: Sequence[str]
    """Data sets whose test judgements are clicks."""
    base: str
    trained: bool
    cut: str
    """That the teacher reads documents not to their end, in a sentence; "" if it reads all of them."""
    training_seconds: Mapping[str, float]
    stages: Mapping[str, Facts]
    """What an earlier stage reported, by its title."""
    mined: Sequence[Mapping[str, str]]
    sources: Facts
    """What each source of mined triplets is."""
    generated: Sequence[tuple[str, str]]
    origin: Facts = field(default_factory=list)


def write_report(path: Path, metrics: Metrics, best: str, background: Background, insight: Insight) -> None:
    """Render the page; if nothing is judged, it tells how close students are to the teacher, and draws nothing."""
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
    """The systems as they are shown, and the re-rankers, which come first; then those without a latency."""
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
    bm25 = kept_of_teacher(metrics, BM25)
    widths = () if bm25 is None else (("wide", WIDE), ("narrow", NARROW))
    return Markup("").join(
        Markup('<div class="{}">{}</div>').format(name, Markup(draw_frontier(panels(metrics), bm25 or 0.0, width)))
        for name, width in widths
    )


def _sections(metrics: Metrics, insight: Insight, part: str) -> Markup:
    return Markup("\n").join(
        Markup("<h{0}>{1}</h{0}>\n{2}").format(2 if part == "unjudged" else 3, figure.title, as_html(blocks))
        for figure, blocks in shown_figures(metrics, insight.measured)
        if figure.part == part
    )


def read_background(folders: Folders, students: Sequence[str]) -> Background:
    """Collect the earlier stages' own reports; UserError when one is missing."""
    ingested, mined, embedded, taught, generated = (
        read_json(folder / _REPORT)
        for folder in (folders.ingest, folders.mine, folders.embed, folders.teach, folders.generate)
    )
    datasets = ingested.get("datasets", {})
    sessions = {name: entry["sessions"]["simulated"] for name, entry in datasets.items() if "sessions" in entry}
    simulated = sorted(name for name, is_simulated in sessions.items() if is_simulated)
    stages = {
        "Ingestion": facts({key: value for key, value in ingested.items() if key != "simulated"}),  # of any set
        "Mining": facts(mined),
        "Teacher": facts({key: value for key, value in taught.items() if key != "comparison"}),  # of a sample
        "Generated queries": generation_facts(generated),
    }
    seconds = {student: float(read_json(folders.distill / student / _REPORT)["seconds"]) for student in students}
    return Background(
        simulated=simulated,
        judged_by_clicks=sorted(name for name, entry in datasets.items() if entry.get("judgements_from_clicks")),
        base=taught.get("base") or taught["model"],  # of a teacher behind an API its name
        trained=bool(taught.get("epochs")),
        cut=_cut(embedded),
        training_seconds=seconds,
        stages={title: rows for title, rows in stages.items() if rows},
        mined=mined_examples(mined),
        sources=mined_sources(mined, simulated, all_simulated=len(simulated) == len(sessions)),
        generated=generated_examples(generated, _EXAMPLES),
    )


def _cut(embedded: Mapping[str, Any]) -> str:
    share, limit = embedded.get("cut_documents") or 0.0, embedded.get("document_tokens")
    if share < _CUT:
        return ""
    longest = f"the {limit:,} tokens that the teacher reads" if limit else "what the teacher reads"
    return f"{share * 100:.0f}\u00a0% of the documents are longer than {longest}; dense search does not see their ends."


def facts(values: Mapping[str, Any], prefix: str = "") -> Facts:
    """(name, value) for each number but 0, truth value and short text, nested names joined; lists are left out."""
    rows: Facts = []
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            rows += facts(value, f"{name} · ")
        elif (text := _format_value(value)) is not None:
            rows.append((name, text))
    return rows


def _format_value(value: object) -> str | None:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float() if value == 0:
            return None
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case str() if 0 < len(value) <= _LONGEST and (len(value) < _DIGEST_LENGTH or " " in value):
            return value
    return None


def generation_facts(report: Mapping[str, Any]) -> Facts:
    """Facts of `generate`, which reports once for each noise level."""
    rows = facts(report)
    for entry in report.get("sigmas", []):
        rows += facts({key: value for key, value in entry.items() if key != "sigma"}, f"sigma {entry.get('sigma')} · ")
    return rows


def generated_examples(report: Mapping[str, Any], count: int) -> list[tuple[str, str]]:
    """(source query, generated query): the first `count` over the noise levels in turn."""
    levels = [entry.get("examples", []) for entry in report.get("sigmas", [])]
    turns = [examples[turn] for turn in range(count) for examples in levels if turn < len(examples)]
    return [(example["source"], example["generated"]) for example in turns[:count]]


def mined_examples(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Triplets as texts: source, query, via (empty for one hop), positive, negative, why; the first of each source."""
    first: dict[str, Mapping[str, Any]] = {}
    for sample in report.get("samples", []):
        first.setdefault(sample["source"], sample)
    return [
        {
            "source": source.replace("_", " "),
            "query": sample["query"]["text"],
            "via": (sample.get("via_query") or {}).get("text", ""),
            "why": sample["why"],
        }
        | {name: sample[name]["title"] or sample[name]["content"] for name in ("positive", "negative")}
        for source, sample in first.items()
    ]


def mined_sources(report: Mapping[str, Any], simulated: Sequence[str], *, all_simulated: bool) -> Facts:
    """Source and what its triplets are, of those that gave any; clicks say if some sets or all are `simulated`."""
    clicks = " (simulated)" if all_simulated else f" (simulated in {', '.join(simulated)})"
    rows = report.get("rows", {})
    return [
        (source.replace("_", " "), sentence.format(simulated=clicks if simulated else ""))
        for source, sentence in _SOURCES.items()
        if rows.get(source)
    ]


DIGITS = 12  # of a digest


def origin(ingest: Path, run: Run) -> list[tuple[str, str]]:
    """Name and value of each; digests are the first digits of a sha256. No run where MLflow knows of none."""
    try:
        run_id = str(getattr(run, "run_id", ""))
    except TransientError:
        run_id = ""
    datasets = read_json(ingest / "report.json").get("datasets", {})
    rows = [("commit", git_commit()), ("MLflow run of evaluate", run_id)]
    rows += [(f"corpus of {name}", str(entry.get("corpus_digest", ""))[:DIGITS]) for name, entry in datasets.items()]
    rows += [(name, sha256_file(table_path(ingest, name))[:DIGITS]) for name in ("queries", "qrels")]
    return [(name, value) for name, value in rows if value]
