"""The measured results as a table for a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.evaluate.closeness import describe_parts
from steps.evaluate.comparing import is_chance, is_gain, significant
from steps.evaluate.figures import shown_figures
from steps.evaluate.formatting import as_text, times
from steps.evaluate.gains import fusion_lines
from steps.evaluate.metrics import VERSION
from steps.evaluate.seeds import seed_lines
from steps.evaluate.served import fusing, served_name
from steps.evaluate.verdict import headline, left_out_lines
from steps.retrieval.dataset_groups import counted_sets

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
    for dataset, models in counted_sets(metrics).items():
        teacher = models["teacher"]["nDCG@10"]
        heads = "".join(f"{name:>12}" for name in (*columns, "retention %", "p50 ms", "queries/s", "MB"))
        width = max(12, *(len(model) + 1 for model in models))
        lines += [f"{dataset} (test queries)", f"{'':{width}}{heads}"]
        for model in sorted(models, key=lambda name: -models[name]["nDCG@10"]):
            cells = [f"{format_measure(models[model], measure):>12}" for measure in columns]
            cells.append(f"{100 * models[model]['nDCG@10'] / teacher:12.1f}" if teacher else f"{'–':>12}")
            lines.append(f"{model:{width}}{''.join(cells)}{_costs(metrics, model)}")
    for dataset in metrics["closeness"]:
        lines += _unjudged_lines(metrics, dataset)
    for figure, blocks in shown_figures(metrics, {}, short=True):
        lines += ["", figure.title, *as_text(blocks), ""]
    lines += [*left_out_lines(metrics), *choice_lines(metrics), *seed_lines(metrics)]
    lines += [*gain_lines(metrics), *fusion_lines(metrics)]
    lines += ["", *headline(metrics)]
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
        share: dict[str, float] | None = metrics[part].get(dataset, {}).get(model)
        if share:
            return share
    return None


def format_measure(values: Mapping[str, float], measure: str) -> str:
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
        f" are. Measured on {describe_parts(metrics['closeness_texts'][dataset])}."
    )


def choice_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The choice within the latency budget, its runner-up and who was left out, a line each."""
    choice = metrics["choice"]
    budget, over = choice["budget_ms"], choice["over_budget"]
    if choice["student"] is None:
        fastest = min(over, key=lambda student: (over[student], student))
        return [
            f"Chosen: none. No student is within evaluate.budget_ms ({budget:g}); the fastest, {fastest}, needs"
            f" {over[fastest]:.3g} ms a query"
        ]
    unit = " ms from text to hits" if fusing(metrics) else " ms"
    name, judged = served_name(metrics, choice["student"]), choice["ndcg"] is not None
    split = "dev" if metrics.get("datasets_dev") else "test"
    figure = (
        f"nDCG@10 {choice['ndcg']:.4f} on {split}"
        if judged
        else f"{choice['overlap']:.1%} of the teacher's top 10 found"
    )
    lines = [f"Chosen: {name}, {_reason(metrics)}: {figure}, {choice['p50_ms']:.3g}{unit}"]
    if choice["runner_up"] is not None:
        lines.append(_runner_up_line(metrics, split if judged else "", unit))
    if alike := choice.get("alike"):
        lines.append(_alike_line(metrics, alike))
    if over:
        slower = ", ".join(f"{student} ({over[student]:.3g} ms)" for student in sorted(over, key=over.__getitem__))
        lines.append(f"Over the budget: {slower}")
    return lines


def _reason(metrics: Mapping[str, Any]) -> str:
    """Why the chosen student was chosen; what dev queries say is told as theirs."""
    choice = metrics["choice"]
    budget = f" within {choice['budget_ms']:g} ms a query" if choice["budget_ms"] else ""
    within = len(metrics["latency"].keys() - {"teacher"}) - len(choice["over_budget"])
    replacing = choice.get("replacing", [])
    if within == 1:
        return f"the only one{budget}"
    if len(replacing) == 1:
        return f"the only one of {within}{budget} that can replace the teacher"
    group = f"the {len(replacing)} that can replace the teacher" if replacing else f"{within}"
    if choice["ndcg"] is None:
        return f"the closest to the teacher of {group}{budget}, as nothing is judged"
    split = "dev" if metrics["datasets_dev"] else "test"
    if choice["student"] == choice["best"]:
        return f"the best of {group}{budget}" + ("" if split == "dev" else ", by test as there are no dev queries")
    worse = f"at most {choice['margin']:.1%} worse than {choice['best']}, the best of {group}{budget}"
    return f"the fastest that is, on {split} and with {choice['confidence']:.0%} confidence, {worse}"


def _runner_up_line(metrics: Mapping[str, Any], split: str, unit: str) -> str:
    """The runner-up with its distance to the choice, on the split that decided and on the test queries."""
    choice = metrics["choice"]
    line = f"Runner-up: {served_name(metrics, choice['runner_up'])}, {choice['runner_up_p50_ms']:.3g}{unit}; "
    line += _distance(choice["difference"], choice["p_value"], f" on {split}" if split else "")
    if choice.get("test_difference") is not None:
        line += f", {_distance(choice['test_difference'], choice['test_p_value'], ' on test')}"
    return line


def _distance(difference: float, p_value: float, where: str) -> str:
    return f"{abs(difference):.4f} {'lower' if difference >= 0 else 'higher'}{where} (p {significant(p_value)})"


def _alike_line(metrics: Mapping[str, Any], alike: Mapping[str, Mapping[str, float]]) -> str:
    """That a faster student, the fastest of those in `alike`, may be as good as the chosen one."""
    choice = metrics["choice"]
    faster = min(alike, key=lambda student: (alike[student]["p50_ms"], student))
    slower = times(choice["p50_ms"] / alike[faster]["p50_ms"])
    return (
        f"{choice['student']} is {slower} times slower than {served_name(metrics, faster)}, and these queries cannot"
        f" show which is better (p {significant(alike[faster]['p_value'])})"
    )


def gain_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The teacher against every tower that it was before, a line each; with a warning where training did not help."""
    quality = counted_sets(metrics, "datasets_dev") or counted_sets(metrics)
    split = "dev" if metrics["datasets_dev"] else "test, as there are no dev queries"
    lines = []
    for tower, gain in metrics["gain_overall"].items():
        before, after = (
            sum(models[name]["nDCG@10"] for models in quality.values()) / len(quality) for name in (tower, "teacher")
        )
        line = (
            f"Teacher against {tower}: nDCG@10 {after:.4f} and {before:.4f} on {split}"
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
