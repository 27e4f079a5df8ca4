"""May a student, as its release serves it, replace the teacher? By the promotion gate's rule, on every data set.

If the release adds BM25 and the teacher has none, the comparison is also made like for like: the encoders alone, and
with BM25 on both sides.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from steps.core.measures import NDCG, units
from steps.evaluate.formatting import milliseconds, percent, rounded, size, times
from steps.evaluate.gains import fused_sets
from steps.evaluate.judging import describe_parts
from steps.evaluate.measuring import Result
from steps.evaluate.systems import TEACHER, behind_api, fused_bytes, fused_name, fusing, served_ms_ratio, served_name
from steps.retrieval.noninferiority import FEWEST, HOPELESS, Answer, NonInferiority

_ALIKE = {"alone": "encoders alone", "both": "BM25 on both sides"}
_ORDER: dict[Answer, int] = {"yes": 0, "cannot tell": 1, "no": 2}

Rows = Mapping[str, Mapping[str, Any]]  # data set -> a student's row of metrics.json, `verdict`


def verdicts(
    students: Mapping[str, Mapping[str, np.ndarray]], teacher: Mapping[str, np.ndarray], rule: NonInferiority
) -> dict[str, dict[str, dict[str, Any]]]:
    """`[data set][student]`: a `Judgement`, from nDCG@10 `(queries,)` by data set; none where the teacher has 0."""
    compared = {dataset: values for dataset, values in teacher.items() if values.mean() > 0}
    return {
        dataset: {
            name: asdict(rule.judge(values[dataset], reference, len(compared))) for name, values in students.items()
        }
        for dataset, reference in compared.items()
        if students
    }


def like_for_like(
    results: Mapping[str, Result], students: Sequence[str], teacher: Mapping[str, np.ndarray], rule: NonInferiority
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """`[data set][student][alone or both]`: as `verdicts`, of encoders alone and with BM25 on both sides.

    Of data sets on which a student's release fuses; `both` if the teacher was measured fused.
    """
    rows: dict[str, dict[str, dict[str, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    pairs = [("alone", name, name, teacher) for name in students]
    if fused_teacher := results.get(fused_name(TEACHER)):
        pairs += [("both", name, fused_name(name), fused_teacher.ndcg("test")) for name in students]
    for kind, name, system, reference in pairs:
        if sets := fused_sets(name, results):
            theirs = {dataset: values for dataset, values in reference.items() if dataset in sets}
            for dataset, row in verdicts({name: results[system].ndcg("test")}, theirs, rule).items():
                rows[dataset][name][kind] = row[name]
    return rows


def overall(answers: Iterable[Answer]) -> Answer:
    """One answer from those by data set: one no is a no, and a yes is a yes on all."""
    return max(answers, key=_ORDER.__getitem__)


def replacing(verdict: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Students whose answer is yes on every data set, from `verdicts`."""
    names = list(next(iter(verdict.values()), {}))
    return [name for name in names if overall(row[name]["answer"] for row in verdict.values()) == "yes"]


def headline(metrics: Mapping[str, Any]) -> list[str]:
    """The result in one sentence a student, the best news first; from metrics.json.

    If BM25 alone does as well as the teacher somewhere, a last sentence says so.
    """
    students = [name for name in metrics["served"] if name != TEACHER]
    if not metrics["verdict"]:
        return _unjudged(metrics, students)
    rows: dict[str, Rows] = {
        name: {dataset: row[name] for dataset, row in metrics["verdict"].items()} for name in students
    }
    answers = {name: overall(row["answer"] for row in rows[name].values()) for name in students}
    ordered = sorted(students, key=lambda name: (_ORDER[answers[name]], metrics["served"][name]["p50_ms"], name))
    lines = [_sentence(metrics, name, answers[name], rows[name]) for name in ordered]
    lexical = metrics.get("lexical", {})
    if sets := [dataset for dataset, row in lexical.items() if row["answer"] == "yes"]:
        where = "" if len(sets) == len(lexical) else f" for {', '.join(sets)}"
        lines.append(f"BM25 alone is enough{where}: its hits are no worse than the teacher's, and it needs no encoder.")
    return lines


def verdict_lines(metrics: Mapping[str, Any], student: str) -> list[str]:
    """The figures behind a student's sentence, a line each: change and interval by data set, then the costs."""
    if not metrics["verdict"]:
        return []
    margin, confidence = metrics["settings"]["margin"], metrics["settings"]["confidence"]
    lines = []
    for dataset, row in ((dataset, row[student]) for dataset, row in metrics["verdict"].items()):
        lines.append(
            f"{dataset}: {row['answer']}. nDCG@10 changes by {row['change']:+.1%}, from {row['low']:+.1%} to"
            f" {row['high']:+.1%} with {confidence:.0%} confidence ({-margin:+.1%} is allowed, {row['queries']:,}"
            " queries)"
        )
        lines += [
            f"{dataset}, {_ALIKE[kind]}: {twin['answer']}. {twin['change']:+.1%}, from {twin['low']:+.1%} to"
            f" {twin['high']:+.1%}"
            for kind, twin in metrics.get("like_for_like", {}).get(dataset, {}).get(student, {}).items()
        ]
    return [*lines, _cost(metrics, student)]


def left_out_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The data sets on which the teacher finds nothing, and what leaves them out, a line each; from metrics.json."""
    quality, lines = metrics["datasets"], []
    for name, members in units(quality, list(metrics["as_one"])).items():
        parts = "the verdict leaves" if name in metrics["retention_by_set"] else "retention and verdict leave"
        for dataset in (member for member in members if not quality[member]["teacher"][NDCG]):
            lines.append(f"The teacher's nDCG@10 on {dataset} is 0, so {parts} it out: check its judgements")
    return lines


def _sentence(metrics: Mapping[str, Any], student: str, answer: Answer, rows: Rows) -> str:
    name, speed = served_name(metrics, student), _speed(metrics, student)
    margin = _share(metrics["settings"]["margin"])
    open_sets = {dataset: row for dataset, row in rows.items() if row["answer"] == answer}
    where = "" if len(rows) == 1 else f" on {_names(metrics, open_sets)}"
    worst = min(open_sets.values(), key=lambda row: float(row["change"]))
    match answer:
        case "yes":
            return f"{name} can replace the teacher: {speed}, {_gain(rows)}.{_compare_both(metrics, student)}"
        case "no":
            at_least = f"at least {_share(-worst['high'])} with {metrics['settings']['confidence']:.0%} confidence"
            return (
                f"{name} cannot replace the teacher: it loses {_share(-worst['change'])} of nDCG@10{where} ({at_least};"
                f" {margin} is allowed). It is {speed}.{_compare_both(metrics, student)}"
            )
        case "cannot tell":
            doubt = _doubt(open_sets, metrics["settings"]["margin"], where)
            return f"{name}: {_speed(metrics, student, ' as the teacher')}; {doubt}.{_compare_both(metrics, student)}"


def _gain(rows: Rows) -> str:
    dataset, row = min(rows.items(), key=lambda item: float(item[1]["change"]))
    queries = sum(judgement["queries"] for judgement in rows.values())
    where = f"on {queries:,} queries" if len(rows) == 1 else f"on {dataset}, the worst of {len(rows)} data sets"
    if row["change"] < -0.0005:
        return f"{_share(-row['change'])} of nDCG@10 lost {where}, {_share(-row['low'])} at worst"
    better = f", nDCG@10 {_share(row['change'])} higher" if row["low"] > 0 else ""
    return f"nothing lost {where}{better}"


def _doubt(rows: Rows, margin: float, where: str) -> str:
    """Why nobody can tell, and how many queries would."""
    queries = sum(row["queries"] for row in rows.values())
    lost = max(-float(row["change"]) for row in rows.values())
    enough = [row["enough"] for row in rows.values()]
    if lost > 1.5 * margin:
        return (
            f"it loses {_share(lost)} of nDCG@10{where}, but {queries:,} queries are too few to be sure that this is"
            f" more than the {_share(margin)} that is allowed"
        )
    sentence = f"{queries:,} queries{where} cannot show whether it loses more than {_share(margin)}"
    if None in enough:
        if lost > margin or queries == 1:
            return f"{sentence}. More queries would hardly help: its loss on these is {_share(lost)}"
        measured = f"loses {_share(lost)}" if lost > 0 else f"gains {_share(-lost)}"
        more = f"Even {HOPELESS} times as many would not"
        return f"{sentence}. {more}: on these it {measured}, but single queries differ widely"
    return f"{sentence}, about {rounded(sum(enough)):,} would"


def _names(metrics: Mapping[str, Any], datasets: Iterable[str]) -> str:
    groups = units(list(metrics["verdict"]), list(metrics.get("as_one", {})))
    names = [name for name, members in groups.items() if set(members) & set(datasets)]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} of {len(groups)} data sets"


def _compare_both(metrics: Mapping[str, Any], student: str) -> str:
    """What a student whose release adds BM25 loses to a teacher that has BM25 as well, if that is no chance."""
    rows = [row.get(student, {}).get("both") for row in metrics.get("like_for_like", {}).values()]
    losses = [-row["change"] for row in rows if row and row["high"] < 0 and row["queries"] >= FEWEST]
    return f" With BM25 on both sides it loses {_share(max(losses))}." if losses else ""


def _unjudged(metrics: Mapping[str, Any], students: Sequence[str]) -> list[str]:
    rows = metrics["closeness"].values()
    parts = Counter[str]()
    for counts in metrics["closeness_texts"].values():
        parts.update(counts)
    texts = describe_parts(parts)
    overlaps = {name: float(np.mean([row[name]["overlap"] for row in rows])) for name in students if rows}
    return [
        f"{name} finds {percent(overlaps[name])} of the teacher's ten nearest documents ({texts}) and is"
        f" {_speed(metrics, name)}. No test query is judged, so how good these are is not known."
        for name in sorted(overlaps, key=lambda name: (-overlaps[name], name))
    ]


def _speed(metrics: Mapping[str, Any], student: str, than: str = "") -> str:
    """How many times as fast as the teacher a student answers, and without what; `than`: its name if it needs one."""
    ratio = served_ms_ratio(metrics, student)
    if ratio >= 1.05:
        words = f"{times(ratio)} times as fast{than}"
    else:
        words = f"{times(1 / ratio)} times as slow{than}" if ratio <= 0.95 else f"as fast{than}"
    return f"{words}, without an API call" if behind_api(metrics) else words


def _share(value: float) -> str:
    """A share of nDCG@10: one digit behind the point, two where that is less than half a percent."""
    return f"{value * 100:.1f} %" if abs(value) >= 0.005 or not value else f"{value * 100:.2f} %"


def _cost(metrics: Mapping[str, Any], student: str) -> str:
    sizes, served = metrics["sizes"], metrics["served"]
    ours, theirs = (milliseconds(served[name]["p50_ms"]) for name in (student, TEACHER))
    action = "from text to hits" if fusing(metrics) else "to encode"
    line = f"A query takes {ours} ms {action}, the teacher's {theirs} ms"
    line += f". The query side has {size(sizes[student]['bytes'])}"
    line += "" if behind_api(metrics) else f", the teacher's {size(sizes[TEACHER]['bytes'])}"
    if lexical := fused_bytes(metrics, student):
        line += f"; its BM25 index adds {size(lexical)}"
    return f"{line}. The teacher is behind an API" if behind_api(metrics) else line
