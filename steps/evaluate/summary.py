"""An evaluation in short: report.md for a pull request, the table of a terminal, and MLflow's charts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.measures import NDCG, counted_sets
from steps.evaluate.choice import choice_lines
from steps.evaluate.comparing import seed_lines, significant
from steps.evaluate.figures import shown_figures
from steps.evaluate.formatting import (
    Table,
    as_markdown,
    as_text,
    format_measure,
    markdown_table,
    milliseconds,
    percent,
    times,
)
from steps.evaluate.gains import fusion_lines, gain_lines
from steps.evaluate.metrics import VERSION
from steps.evaluate.systems import TEACHER, fused_name, fusing, served_name, served_systems
from steps.evaluate.verdict import headline, left_out_lines, verdict_lines

_SLICES = 5  # of a data set
_MEASURES = 3  # that a terminal has room for
_FIRST = ("nDCG@10", "RR@10", "R@100")
_SHORT = ("retention %", "p50 ms", "queries/s", "MB")
_LONG = (NDCG, "of the teacher's", "95 % interval", "p, Holm", "p50, ms")


def results_table(reports: Path) -> str:
    """What a terminal shows of the last evaluation; UserError without metrics.json."""
    path = reports / "metrics.json"
    if not path.is_file():
        raise UserError(f"{path}: not found; run `make demo` first")
    metrics: dict[str, Any] = read_json(path)
    if metrics.get("settings", {}).get("version") != VERSION:
        raise UserError(f"{path}: of another version of the format; run `dvc repro evaluate` to write it anew")
    names = measured(metrics)
    names = [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)][:_MEASURES]
    lines: list[str] = []
    for dataset in counted_sets(metrics):
        lines += ["", f"{dataset} (test queries)", *as_text([quality_table(metrics, dataset, (*names, *_SHORT))])[1:]]
    for figure, blocks in shown_figures(metrics, {}, short=True):
        lines += ["", figure.title, *as_text(blocks)]
    lines += [*left_out_lines(metrics), *choice_lines(metrics), *seed_lines(metrics)]
    lines += [*gain_lines(metrics), *fusion_lines(metrics), "", *headline(metrics)]
    return "\n".join(lines[1:])


def summary(metrics: Mapping[str, Any], best: str, origin: Sequence[tuple[str, str]] = ()) -> str:
    """Markdown of metrics.json; `best` is the student that the verdict is of, `origin` what the figures come from."""
    quality, sentences = counted_sets(metrics), headline(metrics)
    lines = [*(f"- **{line}**" for line in sentences), *([""] if sentences else [])]
    untested = "; no test query is judged" if metrics["datasets_dev"] else ""
    chosen = f"**{best}** was chosen: {metrics['choice']['reason']}{untested}."
    lines += [_kept_of_all(metrics, best) if quality else chosen, ""]
    details = (*choice_lines(metrics), *left_out_lines(metrics), *verdict_lines(metrics, best))
    lines += [f"- {line}" for line in details]
    for dataset in quality:
        table = quality_table(metrics, dataset, _LONG, "model")
        lines += ["", f"**{dataset}**, test queries", *as_markdown([table])]
        slices = metrics["slices"].get(dataset, {})
        parts = {name: row for name, row in slices.items() if row["queries"] < metrics["queries"][dataset]["test"]}
        if rows := _slices(parts, best):
            named = "slices where a student's interval ends below 100 % (of many some do by chance)"
            named += f"; {best} keeps least on these"
            lines += ["", f"**{dataset}**, {named}", "", *rows]
    for figure, blocks in shown_figures(metrics, {}, short=True):
        lines += ["", f"**{figure.title}**", *as_markdown(blocks)]
    notes = [*gain_lines(metrics), *fusion_lines(metrics)]
    lines += [*([""] if notes else []), *(f"- {line}" for line in notes)]
    source = "; ".join(f"{name} {value}" for name, value in origin)
    return "\n".join([*lines, *(["", f"From {source}."] if source else [])]) + "\n"


def _kept_of_all(metrics: Mapping[str, Any], best: str) -> str:
    figures, alone, speed = metrics["served"][best], metrics["retention"][best], metrics["latency"]
    encodes = f"encodes a query **{times(speed['teacher']['p50_ms'] / speed[best]['p50_ms'])} times** as fast"
    keeps = "keeps **{}** of the teacher's nDCG@10 (95 % interval {})"
    statement = keeps.format(percent(figures["mean_of_ratios"]), _interval(figures))
    if not fusing(metrics, best):
        return f"**{best}** {statement} and {encodes}."
    answers = f"{milliseconds(figures['p50_ms'])} ms from text to hits, the teacher in"
    return (
        f"**{served_name(metrics, best)}** {statement} and answers in {answers}"
        f" {milliseconds(metrics['served']['teacher']['p50_ms'])} ms. Its encoder alone"
        f" {keeps.format(percent(alone['mean_of_ratios']), _interval(alone))} and {encodes}."
    )


def quality_table(metrics: Mapping[str, Any], dataset: str, columns: Sequence[str], head: str = "") -> Table:
    """A row a model, best first, with these columns of `_cells`; `head` of the models' names."""
    models = counted_sets(metrics)[dataset]
    rows = []
    for model in sorted(models, key=lambda name: (-models[name][NDCG], name)):
        cells = _cells(metrics, dataset, model, models)
        rows.append([model, *(cells.get(column, "–") for column in columns)])
    return Table([head, *columns], rows)


def _cells(
    metrics: Mapping[str, Any], dataset: str, model: str, models: Mapping[str, Mapping[str, float]]
) -> dict[str, str]:
    """What a terminal and report.md can show of a model, by column; `models`: the data set's."""
    share, speed = share_of(metrics, dataset, model), metrics["latency"].get(model)
    tested = metrics["against_teacher"].get(dataset, {}).get(model)
    retention = percent(models[model][NDCG] / models[TEACHER][NDCG]) if models[TEACHER][NDCG] else "–"
    return {
        **{name: format_measure(models[model], name) for name in models[model]},
        "retention %": retention.removesuffix("\u00a0%"),
        "of the teacher's": retention,
        "95 % interval": _interval(share) if share else "",
        "p, Holm": significant(tested[NDCG]["p_holm"]).removeprefix("= ") if tested else "",
        "p50 ms": f"{speed['p50_ms']:.2f}" if speed else "-",
        "p50, ms": milliseconds(speed["p50_ms"]) if speed else "",
        "queries/s": f"{speed['qps']:.0f}" if speed else "-",
        "MB": f"{metrics['sizes'][model]['bytes'] / 1e6:.1f}" if model in metrics["sizes"] else "-",
    }


def measured(metrics: Mapping[str, Any]) -> list[str]:
    """Names of the measures that some data set has, in order."""
    sets = [*metrics["datasets"].values(), *metrics["datasets_dev"].values()]
    return list(dict.fromkeys(name for models in sets for values in models.values() for name in values))


def share_of(metrics: Mapping[str, Any], dataset: str, model: str) -> dict[str, float] | None:
    """A model's share of the teacher's test nDCG@10, with its interval; None of the teacher, or where it has 0."""
    for part in ("retention_by_set", "shares"):
        share: dict[str, float] | None = metrics[part].get(dataset, {}).get(model)
        if share:
            return share
    return None


def _slices(slices: Mapping[str, Any], best: str) -> list[str]:
    """Those that `best` keeps least on, where the interval of some student lies below the teacher; none: no lines."""
    retentions = {name: dict(row["retention"]) for name, row in slices.items()}
    for shares in retentions.values():
        shares.pop(fused_name(TEACHER), None)
    lost = [
        name
        for name, shares in retentions.items()
        if best in shares and any(share["ci95_high"] < 1 for share in shares.values())
    ]
    worst = sorted(lost, key=lambda name: float(retentions[name][best]["ratio"]))[:_SLICES]
    students = list(dict.fromkeys(student for name in worst for student in retentions[name]))
    rows = []
    for name in worst:
        row = (retentions[name].get(student) for student in students)
        cells = [f"{percent(share['ratio'])} ({_interval(share)})" if share else "" for share in row]
        rows.append([name, f"{slices[name]['queries']:,}", *cells])
    return markdown_table(["slice", "queries", *students], rows) if rows else []


def _interval(share: Mapping[str, float]) -> str:
    return f"{share['ci95_low'] * 100:.1f} – {share['ci95_high'] * 100:.1f}"


def charts(metrics: Mapping[str, Any]) -> dict[str, float]:
    """HEADLINE of the chosen student as its release serves it, and groups of charts of all systems.

    nDCG@10 is the mean over data sets, `p50_ms` is text to hits, and `times_as_fast` compares it with the teacher's.
    """
    quality, served, student = counted_sets(metrics), metrics["served"], metrics["choice"]["student"]
    everywhere = set.intersection(*(set(models) for models in quality.values())) if quality else ()
    figures: dict[str, float] = {}
    if student:
        figures["p50_ms"] = served[student]["p50_ms"]
        figures["times_as_fast"] = served[TEACHER]["p50_ms"] / served[student]["p50_ms"]
    if student and quality:
        scores = [models[served_systems(metrics, dataset)[student]][NDCG] for dataset, models in quality.items()]
        figures["nDCG_at_10"] = float(np.mean(scores))
        figures["teacher_nDCG_at_10"] = float(np.mean([models[TEACHER][NDCG] for models in quality.values()]))
        figures["retention"] = served[student]["mean_of_ratios"]
    for name in everywhere:
        label = f"nDCG_at_10/{name.replace('+', ' with ')}"
        figures[label] = float(np.mean([models[name][NDCG] for models in quality.values()]))
    for name, row in served.items():
        figures[f"p50_ms/{name}"] = row["p50_ms"]
        if "mean_of_ratios" in row:
            figures[f"retention/{name}"] = row["mean_of_ratios"]
    return figures
