"""May a student, as its release serves it, replace the teacher? By the promotion gate's rule, on every data set.

Where the release adds BM25 and the teacher has none, like is held against like as well: the encoders alone, and with
BM25 beside both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from steps.core.measures import NDCG
from steps.evaluate.fusion_gains import fused_name
from steps.evaluate.results import Result
from steps.evaluate.served import behind_api, fused_sets, fusing, served_name
from steps.evaluate.shown import milliseconds, size
from steps.evaluate.systems import TEACHER
from steps.retrieval.as_one import units
from steps.retrieval.noninferiority import FEWEST, NonInferiority

Answer = Literal["yes", "no", "cannot tell"]
_ALIKE = {"alone": "the encoders alone", "both": "with BM25 beside both"}


@dataclass(frozen=True)
class Verdict:
    """Of one student in a few sentences: `lines` tell change and interval by data set, then what it costs and saves."""

    question: str
    answer: str
    lines: list[str]


def verdicts(
    students: Mapping[str, Mapping[str, np.ndarray]], teacher: Mapping[str, np.ndarray], rule: NonInferiority
) -> dict[str, dict[str, dict[str, Any]]]:
    """`[data set][student]`: the figures of metrics.json, `verdict`, of nDCG@10 `(queries,)` by data set of each.

    `low` is bounded with the rule's confidence, as all data sets have to pass; `high` with what Bonferroni's correction
    leaves each, as one that fails is enough. Data sets on which the teacher has 0 are left out. Fewer than FEWEST
    queries cannot tell: of few differences a bootstrap makes an interval that is too narrow, of equal ones one without
    width.
    """
    counted = {dataset: theirs for dataset, theirs in teacher.items() if theirs.mean() > 0}
    stricter = rule.model_copy(update={"confidence": 1 - (1 - rule.confidence) / max(len(counted), 1)})
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for dataset, theirs in counted.items():
        for name, values in students.items():
            low, high = float(rule.least(values[dataset], theirs)), float(stricter.most(values[dataset], theirs))
            told: Answer = "yes" if low >= 0 else "no" if high < 0 else "cannot tell"
            answer: Answer = told if len(theirs) >= FEWEST else "cannot tell"
            mean = float(theirs.mean())
            found.setdefault(dataset, {})[name] = {
                "answer": answer,
                "change": float(values[dataset].mean()) / mean - 1,
                "low": low / mean - rule.margin,
                "high": high / mean - rule.margin,
                "queries": len(theirs),
            }
    return found


def like_for_like(
    results: Mapping[str, Result], students: Sequence[str], teacher: Mapping[str, np.ndarray], rule: NonInferiority
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """`[data set][student][alone or both]`: as `verdicts`, of encoders alone and with BM25 beside both.

    Of data sets on which a student's release fuses; `both` where the teacher was measured fused.
    """
    beside = results.get(fused_name(TEACHER))
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name in students:
        sets = fused_sets(name, results)
        pairs = {"alone": (results[name].ndcg("test"), teacher)} if sets else {}
        if sets and beside:
            pairs["both"] = (results[fused_name(name)].ndcg("test"), beside.ndcg("test"))
        for kind, (ours, theirs) in pairs.items():
            compared = verdicts({name: ours}, {each: theirs[each] for each in theirs if each in sets}, rule)
            for dataset, row in compared.items():
                found.setdefault(dataset, {}).setdefault(name, {})[kind] = row[name]
    return found


def verdict_of(metrics: Mapping[str, Any], student: str) -> Verdict | None:
    """In words, by metrics.json; None where no test query is judged. No on one data set is no, yes is yes on all."""
    rows = {dataset: row[student] for dataset, row in metrics["verdict"].items()}
    if not rows:
        return None
    answers = {row["answer"] for row in rows.values()}
    queries = sum(row["queries"] for row in rows.values() if row["answer"] == "cannot tell")
    unknown = f"Cannot tell from {queries:,} queries."
    answer = "No." if "no" in answers else "Yes." if answers == {"yes"} else unknown
    like = {dataset: row.get(student, {}) for dataset, row in metrics.get("like_for_like", {}).items()}
    if answer == "Yes." and any(row["both"]["answer"] == "no" for row in like.values() if "both" in row):
        answer = "Yes, but a teacher with BM25 beside it is better."
    margin, confidence = metrics["settings"]["margin"], metrics["settings"]["confidence"]
    lines = []
    for dataset, row in rows.items():
        lines.append(
            f"{dataset}: {row['answer']}, nDCG@10 {row['change']:+.1%} against the teacher's; with {confidence:.0%}"
            f" confidence at worst {row['low']:+.1%}, at best {row['high']:+.1%} (allowed {-margin:+.1%},"
            f" {row['queries']:,} queries)"
        )
        lines += [
            f"{dataset}, {_ALIKE[kind]}: {each['answer']}, {each['change']:+.1%}; at worst {each['low']:+.1%}, at best"
            f" {each['high']:+.1%}"
            for kind, each in like.get(dataset, {}).items()
        ]
    return Verdict(
        f"May {served_name(metrics, student)} replace the teacher?", answer, [*lines, _cost(metrics, student)]
    )


def left_out_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The data sets on which the teacher finds nothing, and what they are left out of, a line each; by metrics.json."""
    quality, lines = metrics["datasets"], []
    for name, members in units(quality, list(metrics["as_one"])).items():
        of = "the verdict" if name in metrics["retention_by_set"] else "retention and verdict"
        for dataset in (each for each in members if not quality[each]["teacher"][NDCG]):
            lines.append(f"The teacher's nDCG@10 on {dataset} is 0, which is left out of {of}: check its judgements")
    return lines


def _cost(metrics: Mapping[str, Any], student: str) -> str:
    """Milliseconds and bytes against the teacher's."""
    sizes, served = metrics["sizes"], metrics["served"]
    ours, theirs = (milliseconds(served[name]["p50_ms"]) for name in (student, TEACHER))
    took = "from text to hits" if fusing(metrics) else "to encode"
    told = f"A query takes {ours} ms {took} instead of {theirs}; the query side has {size(sizes[student]['bytes'])}"
    if not behind_api(metrics):
        told += f" instead of {size(sizes[TEACHER]['bytes'])}"
    if lexical := sum(metrics["fused"][dataset][student]["bytes"] for dataset in fusing(metrics, student)):
        told += f", and its BM25 index {size(lexical)} more"
    return f"{told}; the teacher is behind an API" if behind_api(metrics) else told
