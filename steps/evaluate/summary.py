"""An evaluation in short: report.md for a pull request, the table of a terminal, and MLflow's charts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.measures import NDCG
from steps.evaluate.choice import choice_lines
from steps.evaluate.comparing import seed_lines, significant
from steps.evaluate.figures import shown_figures
from steps.evaluate.formatting import Table, as_markdown, as_text, markdown_table, milliseconds, percent, times
from steps.evaluate.gains import fusion_lines, gain_lines
from steps.evaluate.metrics import VERSION
from steps.evaluate.params import HEADLINE
from steps.evaluate.served import fusing, served_name
from steps.evaluate.systems import TEACHER, fused_name
from steps.evaluate.verdict import headline, left_out_lines, verdict_lines
from steps.retrieval.dataset_groups import counted_sets

_SLICES = 5  # of a data set
_COLUMNS = 3  # measures that a terminal has room for
_FIRST = ("nDCG@10", "RR@10", "R@100")
# metrics.json, data set, model, and the data set's models -> cell
Column = Callable[[Mapping[str, Any], str, str, Mapping[str, Mapping[str, float]]], str]


def results_table(reports: Path) -> str:
    """What a terminal shows of the last evaluation; UserError without metrics.json.

    Quality, share of the teacher's, latency and size of every model on every data set, then the answer.
    """
    path = reports / "metrics.json"
    if not path.is_file():
        raise UserError(f"{path}: not found; run `make demo` first")
    metrics: dict[str, Any] = read_json(path)
    if metrics.get("settings", {}).get("version") != VERSION:
        raise UserError(f"{path}: of another version of the format; run `dvc repro evaluate` to write it anew")
    names = measured(metrics)
    names = [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)][:_COLUMNS]
    columns = {name: _measure(name) for name in names} | _SHORT
    lines: list[str] = []
    for dataset, models in counted_sets(metrics).items():
        table = quality_table(metrics, dataset, models, columns)
        lines += ["", f"{dataset} (test queries)", *as_text([table])[1:]]
    for figure, blocks in shown_figures(metrics, {}, short=True):
        lines += ["", figure.title, *as_text(blocks)]
    lines += [*left_out_lines(metrics), *choice_lines(metrics), *seed_lines(metrics)]
    lines += [*gain_lines(metrics), *fusion_lines(metrics), "", *headline(metrics)]
    return "\n".join(lines[1:])


def summary(metrics: Mapping[str, Any], best: str, origin: Sequence[tuple[str, str]] = ()) -> str:
    """Markdown of metrics.json; `best` is the student that the verdict is of, `origin` what the figures come from."""
    quality = counted_sets(metrics)
    introduction = _kept_of_all(metrics, best) if quality else _not_tested(metrics, best)
    sentences = headline(metrics)
    details = (*choice_lines(metrics), *left_out_lines(metrics), *verdict_lines(metrics, best))
    lines = [
        *(f"- **{line}**" for line in sentences),
        *([""] if sentences else []),
        introduction,
        "",
        *(f"- {line}" for line in details),
    ]
    for dataset, models in quality.items():
        lines += [
            "",
            f"**{dataset}**, test queries",
            *as_markdown([quality_table(metrics, dataset, models, _LONG, "model")]),
        ]
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


def _not_tested(metrics: Mapping[str, Any], best: str) -> str:
    """What is known of a student where no test query is judged."""
    untested = "; no test query is judged" if metrics["datasets_dev"] else ""
    return f"**{best}** was chosen: {metrics['choice']['reason']}{untested}."


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


def quality_table(
    metrics: Mapping[str, Any],
    dataset: str,
    models: Mapping[str, Mapping[str, float]],
    columns: Mapping[str, Column],
    head: str = "",
) -> Table:
    """A row a model, best first, with these columns; `head` of the models' names."""
    ordered = sorted(models, key=lambda name: (-models[name][NDCG], name))
    rows = [[model, *(column(metrics, dataset, model, models) for column in columns.values())] for model in ordered]
    return Table([head, *columns], rows)


def measured(metrics: Mapping[str, Any]) -> list[str]:
    """Names of the measures that some data set has, in order."""
    sets = [*metrics["datasets"].values(), *metrics["datasets_dev"].values()]
    return list(dict.fromkeys(name for models in sets for values in models.values() for name in values))


def share_of(metrics: Mapping[str, Any], dataset: str, model: str) -> dict[str, float] | None:
    """A model's share of the teacher's test nDCG@10, with its interval; None of the teacher, or where it has 0.

    Of data sets that count as one, students alone have one.
    """
    for part in ("retention_by_set", "shares"):
        share: dict[str, float] | None = metrics[part].get(dataset, {}).get(model)
        if share:
            return share
    return None


def format_measure(values: Mapping[str, float], measure: str) -> str:
    """A value with four digits, a dash where the data set has no such measure."""
    return f"{values[measure]:.4f}" if measure in values else "–"


def _measure(name: str) -> Column:
    return lambda metrics, dataset, model, models: format_measure(models[model], name)


def _kept(metrics: Mapping[str, Any], dataset: str, model: str, models: Mapping[str, Mapping[str, float]]) -> str:
    teacher = models[TEACHER][NDCG]
    return percent(models[model][NDCG] / teacher) if teacher else "–"


def _kept_interval(
    metrics: Mapping[str, Any], dataset: str, model: str, models: Mapping[str, Mapping[str, float]]
) -> str:
    share = share_of(metrics, dataset, model)
    return _interval(share) if share else ""


def _holm(metrics: Mapping[str, Any], dataset: str, model: str, models: Mapping[str, Mapping[str, float]]) -> str:
    tested = metrics["against_teacher"].get(dataset, {}).get(model)
    return significant(tested[NDCG]["p_holm"]).removeprefix("= ") if tested else ""


def _cost(part: str, key: str, shown: Callable[[float], str], otherwise: str = "-") -> Column:
    def column(metrics: Mapping[str, Any], dataset: str, model: str, models: Mapping[str, Mapping[str, float]]) -> str:
        return shown(metrics[part][model][key]) if model in metrics[part] else otherwise

    return column


_SHORT: dict[str, Column] = {
    "retention %": lambda *row: _kept(*row).removesuffix("\u00a0%"),
    "p50 ms": _cost("latency", "p50_ms", "{:.2f}".format),
    "queries/s": _cost("latency", "qps", "{:.0f}".format),
    "MB": _cost("sizes", "bytes", lambda count: f"{count / 1e6:.1f}"),
}
_LONG: dict[str, Column] = {NDCG: _measure(NDCG), "of the teacher's": _kept, "95 % interval": _kept_interval}
_LONG |= {"p, Holm": _holm, "p50, ms": _cost("latency", "p50_ms", milliseconds, "")}


def _slices(slices: Mapping[str, Any], best: str) -> list[str]:
    """Those that `best` keeps least on, where the interval of some student lies below the teacher; none: no lines."""
    lost = {
        name: row
        for name, row in slices.items()
        if best in row["retention"] and any(share["ci95_high"] < 1 for share in _students(row).values())
    }
    worst = sorted(lost, key=lambda name: float(lost[name]["retention"][best]["ratio"]))[:_SLICES]
    students = list(dict.fromkeys(student for name in worst for student in _students(lost[name])))
    rows = []
    for name in worst:
        shares = lost[name]["retention"]
        cells = [_format_share(shares[student]) if student in shares else "" for student in students]
        rows.append([name, f"{lost[name]['queries']:,}", *cells])
    return markdown_table(["slice", "queries", *students], rows) if rows else []


def _students(row: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    return {name: share for name, share in row["retention"].items() if name != fused_name(TEACHER)}


def _format_share(share: Mapping[str, float]) -> str:
    return f"{percent(share['ratio'])} ({_interval(share)})"


def _interval(share: Mapping[str, float]) -> str:
    return f"{share['ci95_low'] * 100:.1f} – {share['ci95_high'] * 100:.1f}"


def main_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """HEADLINE of the chosen student as its release serves it; what was not measured is left out.

    nDCG@10 is the mean over data sets, `p50_ms` is text to hits, and `times_as_fast` compares it with the teacher's.
    """
    student = metrics["choice"]["student"]
    if student not in metrics["served"]:
        return {}
    served = metrics["served"]
    figures = {"p50_ms": served[student]["p50_ms"]}
    if TEACHER in served:
        figures["times_as_fast"] = served[TEACHER]["p50_ms"] / served[student]["p50_ms"]
    if quality := counted_sets(metrics):
        fused = set(fusing(metrics, student))
        scores = [
            sets[fused_name(student) if dataset in fused and fused_name(student) in sets else student][NDCG]
            for dataset, sets in quality.items()
        ]
        figures["nDCG_at_10"] = float(np.mean(scores))
        figures["teacher_nDCG_at_10"] = float(np.mean([sets[TEACHER][NDCG] for sets in quality.values()]))
        figures["retention"] = served[student]["mean_of_ratios"]
    return {name: figures[name] for name in HEADLINE if name in figures}


def charts(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The headline, and beside it groups of charts: nDCG@10 of each system, retention and latency of each student."""
    quality = counted_sets(metrics)
    systems = sorted({name for sets in quality.values() for name in sets})
    figures = {
        f"nDCG_at_10/{name}": float(np.mean([sets[name][NDCG] for sets in quality.values()]))
        for name in systems
        if all(name in sets for sets in quality.values())
    }
    for name, served in metrics["served"].items():
        figures |= {f"p50_ms/{name}": served["p50_ms"]}
        figures |= {f"retention/{name}": served["mean_of_ratios"]} if "mean_of_ratios" in served else {}
    return main_figures(metrics) | {name.replace("+", " with "): value for name, value in figures.items()}
