"""The measured results as a table for a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import read_json
from steps.evaluate.closeness import told
from steps.evaluate.fusion_gains import fusion_lines
from steps.evaluate.metrics import VERSION
from steps.evaluate.retention import is_chance, is_gain
from steps.evaluate.seeds import seed_lines
from steps.evaluate.served import fusing, served_name
from steps.evaluate.significance import significant
from steps.evaluate.verdict import left_out_lines
from steps.retrieval.as_one import counted

_COLUMNS = 3  # measures that a terminal has room for
_FIRST = ("nDCG@10", "RR@10", "R@100")


def results_table(reports: Path) -> str:
    """Quality, retention, latency and size of every model on every data set; UserError without metrics.json.

    Of a data set that is not judged, how close students are to the teacher.
    """
    path = reports / "metrics.json"
    if not path.is_file():
        raise UserError(f"{path}: not found; run `make demo` first")
    metrics: dict[str, Any] = read_json(path)
    if metrics.get("settings", {}).get("version") != VERSION:
        raise UserError(f"{path}: of another version of the format; run `dvc repro evaluate` to write it anew")
    lines, columns = [], _columns(metrics)
    for dataset, models in counted(metrics).items():
        teacher = models["teacher"]["nDCG@10"]
        heads = "".join(f"{name:>12}" for name in (*columns, "retention %", "p50 ms", "queries/s", "MB"))
        width = max(12, *(len(model) + 1 for model in models))
        lines += [f"{dataset} (test queries)", f"{'':{width}}{heads}"]
        for model in sorted(models, key=lambda name: -models[name]["nDCG@10"]):
            cells = [f"{shown(models[model], measure):>12}" for measure in columns]
            cells.append(f"{100 * models[model]['nDCG@10'] / teacher:12.1f}" if teacher else f"{'–':>12}")
            lines.append(f"{model:{width}}{''.join(cells)}{_costs(metrics, model)}")
    for dataset in metrics["closeness"]:
        lines += _unjudged_lines(metrics, dataset)
    lines += [*left_out_lines(metrics), *choice_lines(metrics), *seed_lines(metrics)]
    lines += [*gain_lines(metrics), *fusion_lines(metrics)]
    return "\n".join(lines)


def measured(metrics: Mapping[str, Any]) -> list[str]:
    """Names of the measures that some data set has, in order."""
    sets = [*metrics["datasets"].values(), *metrics["datasets_dev"].values()]
    return list(dict.fromkeys(name for models in sets for values in models.values() for name in values))


def share_of(metrics: Mapping[str, Any], dataset: str, model: str) -> dict[str, float] | None:
    """A model's share of the teacher's test nDCG@10, with its interval; None of the teacher, or where it has 0.

    Of data sets that count as one, students alone have one.
    """
    for part in ("retention_by_set", "shares"):
        found: dict[str, float] | None = metrics[part].get(dataset, {}).get(model)
        if found:
            return found
    return None


def shown(values: Mapping[str, float], measure: str) -> str:
    """A value with four digits, a dash where the data set has no such measure."""
    return f"{values[measure]:.4f}" if measure in values else "–"


def _columns(metrics: Mapping[str, Any]) -> list[str]:
    """Those of _FIRST that were measured, and others where there is room."""
    names = measured(metrics)
    return [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)][:_COLUMNS]


def _costs(metrics: Mapping[str, Any], model: str) -> str:
    """The columns p50, queries/s and MB."""
    speed, size = metrics["latency"].get(model), metrics["sizes"].get(model)
    cells = [f"{speed['p50_ms']:12.2f}", f"{speed['qps']:12.0f}"] if speed else [f"{'-':>12}"] * 2
    return "".join([*cells, f"{size['bytes'] / 1e6:12.1f}" if size else f"{'-':>12}"])


def _unjudged_lines(metrics: Mapping[str, Any], dataset: str) -> list[str]:
    """The table of a data set without judged test queries, and what its figures are."""
    students = metrics["closeness"][dataset]
    heads = "".join(f"{name:>12}" for name in ("cosine", "same top 10", "p50 ms", "queries/s", "MB"))
    lines = [f"{dataset} (not judged: closeness to the teacher)", f"{'':12}{heads}"]
    for model in ["teacher", *sorted(students, key=lambda name: -students[name]["overlap"])]:
        close = students.get(model, {"cosine": 1.0, "overlap": 1.0})
        lines.append(f"{model:12}{close['cosine']:12.4f}{close['overlap']:12.4f}{_costs(metrics, model)}")
    return [*lines, unjudged_line(metrics, dataset)]


def unjudged_line(metrics: Mapping[str, Any], dataset: str) -> str:
    """What was measured of a data set without judgements, and on what, in one sentence."""
    return (
        f"No test query of {dataset} is judged: this says how close students are to the teacher, not how good its hits"
        f" are. Measured on {told(metrics['closeness_texts'][dataset])}."
    )


def choice_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The choice within the latency budget, its runner-up and who was left out, a line each."""
    choice = metrics["choice"]
    budget, over = choice["budget_ms"], choice["over_budget"]
    if choice["student"] is None:
        fastest = min(over, key=lambda student: (over[student], student))
        return [
            f"Choice: none, no student is within evaluate.budget_ms ({budget:g}): the fastest, {fastest},"
            f" needs {over[fastest]:.3g} ms a query"
        ]
    count = len(metrics["latency"].keys() - {"teacher"}) - len(over)
    within = f" within {budget:g} ms a query" if budget else ""
    who = f"the best of {count}{within}" if count > 1 else f"the only one{within}"
    if choice["ndcg"] is None:
        key, measured = "overlap", f"{choice['overlap']:.1%} of the teacher's top 10, as nothing is judged"
        who = who.replace("best", "closest to the teacher")
    else:
        split = "dev" if metrics["datasets_dev"] else "test, as there are no dev queries"
        key, measured = "ndcg", f"nDCG@10 {choice['ndcg']:.4f} on {split}"
    if choice["student"] != choice["best"]:
        told, confidence = choice["reason"].partition(" on ")[0], f"{choice['confidence']:.0%} confidence"
        who = f"of {count}{within} the {told}, with {confidence}"
    unit = " ms from text to hits" if fusing(metrics) else " ms"
    lines = [f"Choice: {served_name(metrics, choice['student'])}, {who}: {measured}, {choice['p50_ms']:.3g}{unit}"]
    if choice["runner_up"] is not None:
        behind = choice["difference"]
        lines.append(
            f"Runner-up: {served_name(metrics, choice['runner_up'])}, {choice[f'runner_up_{key}']:.4f},"
            f" {choice['runner_up_p50_ms']:.3g}{unit};"
            f" {abs(behind):.4f} {'less' if behind >= 0 else 'more'}"
            f" (paired t-test, p {significant(choice['p_value'])})"
        )
    if alike := choice.get("alike"):
        lines.append(_alike_line(metrics, alike))
    if over:
        slower = ", ".join(f"{student} ({over[student]:.3g} ms)" for student in sorted(over, key=over.__getitem__))
        lines.append(f"Over the budget: {slower}")
    return lines


def _alike_line(metrics: Mapping[str, Any], alike: Mapping[str, Mapping[str, float]]) -> str:
    """That the slower one was chosen though a faster one, the fastest of those, is as good for all that is known."""
    choice = metrics["choice"]
    other = min(alike, key=lambda student: (alike[student]["p50_ms"], student))
    slower = choice["p50_ms"] / alike[other]["p50_ms"]
    return (
        f"{choice['student']} is not distinguishable from {served_name(metrics, other)}"
        f" (p {significant(alike[other]['p_value'])}), and {slower:.2g} times slower: too few queries show that"
        f" {other} loses less than {choice['margin']:.2%}"
    )


def gain_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The teacher against every tower that it was before, a line each; with a warning where training did not help."""
    quality = counted(metrics, "datasets_dev") or counted(metrics)
    split = "dev" if metrics["datasets_dev"] else "test, as there are no dev queries"
    lines = []
    for tower, gain in metrics["gain_overall"].items():
        before, now = (
            sum(models[name]["nDCG@10"] for models in quality.values()) / len(quality) for name in (tower, "teacher")
        )
        line = (
            f"Teacher against {tower}: nDCG@10 {now:.4f} and {before:.4f} on {split}"
            f" (paired t-test, p {significant(gain['p_value'])})"
        )
        if tower == "base" and gain["difference"] <= 0:
            line += (
                "; WARNING: the trained teacher is not better than its base; set its epochs: 0.0, or change learning"
                " rate or data"
            )
        elif tower == "base" and not is_gain(**gain):
            line += "; this may be chance: judge more queries"
        elif gain["difference"] < 0 and not is_chance(gain["p_value"]):
            line += f"; WARNING: it is worse than {tower}, which it was before; train fewer rounds (rounds.more)"
        lines.append(line)
    return lines
