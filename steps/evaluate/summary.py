"""`reports/report.md`: the verdict, what was measured, and where students lose, short enough for a pull request."""

from collections.abc import Mapping, Sequence
from typing import Any

from steps.core.measures import NDCG
from steps.evaluate.comparing import significant
from steps.evaluate.figures import shown_figures
from steps.evaluate.formatting import as_markdown, markdown_table, milliseconds, percent, times
from steps.evaluate.gains import fused_name, fusion_lines
from steps.evaluate.served import fusing, served_name
from steps.evaluate.systems import TEACHER
from steps.evaluate.table import choice_lines, gain_lines, share_of, unjudged_line
from steps.evaluate.verdict import headline, left_out_lines, verdict_lines
from steps.retrieval.dataset_groups import counted_sets

_SLICES = 5  # of a data set


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
        lines += ["", f"**{dataset}**, test queries", "", *_quality(metrics, dataset, models)]
        slices = metrics["slices"].get(dataset, {})
        parts = {name: row for name, row in slices.items() if row["queries"] < metrics["queries"][dataset]["test"]}
        if rows := _slices(parts, best):
            named = "slices where a student's interval ends below 100 % (of many some do by chance)"
            named += f"; {best} keeps least on these"
            lines += ["", f"**{dataset}**, {named}", "", *rows]
    for dataset, students in metrics["closeness"].items():
        close = [[name, f"{figures['cosine']:.4f}", percent(figures["overlap"])] for name, figures in students.items()]
        lines += ["", unjudged_line(metrics, dataset), "", *markdown_table(["student", "cosine", "same top 10"], close)]
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


def _quality(metrics: Mapping[str, Any], dataset: str, models: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A row a model, best first."""
    teacher, rows = models["teacher"][NDCG], []
    for model in sorted(models, key=lambda name: (-models[name][NDCG], name)):
        share = share_of(metrics, dataset, model)
        tested = metrics["against_teacher"].get(dataset, {}).get(model)
        speed = metrics["latency"].get(model)
        rows.append(
            [
                model,
                f"{models[model][NDCG]:.4f}",
                percent(models[model][NDCG] / teacher) if teacher else "",
                _interval(share) if share else "",
                significant(tested[NDCG]["p_holm"]).removeprefix("= ") if tested else "",
                milliseconds(speed["p50_ms"]) if speed else "",
            ]
        )
    return markdown_table(["model", NDCG, "of the teacher's", "95 % interval", "p, Holm", "p50, ms"], rows)


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
