"""From per-query figures of all seeds to a finished table: ratios to the teacher, spreads, tests and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bench.tables.expected import TEACHER, Claim, Entry, Table
from bench.tables.pipeline import Scores
from slimtower.common.errors import UserError
from steps.evaluate.comparing import p_value

Verdict = Literal["OK", "OKish", "FAIL", "new"]
Retention = Mapping[str, Mapping[str, np.ndarray]]  # split -> data set -> student / teacher of each seed, `(seeds,)`


@dataclass(frozen=True)
class Measured:
    """A line of the table: nDCG@10 of each query and seed, and what the cells say besides."""

    entry: Entry
    scores: Sequence[Scores]  # one a seed
    cells: Sequence[Mapping[str, Any]]

    def by_query(self, split: str, dataset: str) -> np.ndarray:
        """Means over the seeds, `(queries,)`."""
        return np.array([seed[split][dataset] for seed in self.scores]).mean(axis=0)


def with_teachers(lines: Mapping[str, Measured], teacher: Scores) -> dict[str, Measured]:
    """The lines, and `<line>/teacher_before` and `<line>/teacher_after` of those whose teacher trained along.

    `teacher`: nDCG@10 of the index teacher, who is one of them where the cells say nothing of before.
    """
    all_lines = dict(lines)
    for name, line in lines.items():
        if all("teacher_after" in cell for cell in line.cells):
            for moment in TEACHER:
                all_lines[f"{name}/{moment}"] = replace(line, scores=[cell.get(moment, teacher) for cell in line.cells])
    return all_lines


def near(value: float, expected: float | None, tolerance: float) -> Verdict:
    """OK within the tolerance, OKish within twice of it; new without an expectation."""
    if expected is None:
        return "new"
    distance = abs(value - expected) - 1e-9  # what decimal figures lose in binary
    return "OK" if distance <= tolerance else "OKish" if distance <= 2 * tolerance else "FAIL"


def at_least(value: float, promised: float) -> Verdict:
    """OK from what is promised on."""
    return "OK" if promised - value <= 1e-9 else "FAIL"


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """FAIL before OKish before OK; new only where nothing else is known."""
    ranked: list[Verdict] = ["new", "OK", "OKish", "FAIL"]
    return max(verdicts, key=ranked.index, default="new")


def retention(line: Measured, teacher: Scores) -> Retention:
    """Student / teacher of the mean nDCG@10; UserError where the teacher finds nothing."""
    ratios: dict[str, dict[str, np.ndarray]] = {}
    for split, datasets in teacher.items():
        for dataset, values in datasets.items():
            teacher_mean = float(np.mean(values))
            if teacher_mean <= 0:
                raise UserError(
                    f"models/teach: the teacher's nDCG@10 on {dataset} {split} is 0; no student has a retention"
                )
            means = [float(np.mean(seed[split][dataset])) / teacher_mean for seed in line.scores]
            ratios.setdefault(split, {})[dataset] = np.array(means)
    return ratios


def row_of(line: Measured, teacher: Scores, table: Table) -> dict[str, Any]:
    """All that is told of a line; ratios are means over data sets and seeds, on test unless they say dev.

    `teacher_after`: mean nDCG@10 of a teacher that trained along, `teacher_before` where that is not the table's.
    """
    ratios, row, cells = retention(line, teacher), line.entry.row, line.cells
    test, by_seed = ratios["test"], _over_sets(ratios["test"])
    mean, worst = float(by_seed.mean()), min(test, key=lambda name: float(test[name].mean()))
    students = {name: float(line.by_query("test", name).mean()) for name in test}
    teachers = {name: float(np.mean(teacher["test"][name])) for name in test}
    differences = {name: line.by_query("test", name) - np.array(teacher["test"][name]) for name in test}
    seconds = {f"{kind}_seconds": float(np.mean([cell[f"{kind}_seconds"] for cell in cells])) for kind in
               ("training", "stage")}  # fmt: skip
    record: dict[str, Any] = {
        "description": row.description,
        "student": cells[0]["student"],
        "mixture": cells[0]["drawn"],
        "retention": {"mean": mean, "sd": _spread(by_seed), "by_seed": by_seed.tolist()},
        "datasets": {
            name: {"ndcg": students[name], "retention": float(ratio.mean()), "sd": _spread(ratio)}
            for name, ratio in test.items()
        },
        "ratio_of_means": sum(students.values()) / sum(teachers.values()),
        "worst": {"dataset": worst, "retention": float(test[worst].mean())},
        "against_teacher": {
            **_tested([*differences.values()]),
            "datasets": {name: _tested([values]) for name, values in differences.items()},
        },
        **seconds,
        **{name: float(np.mean([cell[name] for cell in cells])) for name in
           ("texts_seen", "texts_per_second", "validation_cosine")},
        "parameters": cells[0]["parameters"],
        "bytes": cells[0]["bytes"],
        "paper": row.paper,
    }  # fmt: skip
    if "dev" in ratios:
        dev = _over_sets(ratios["dev"])
        record["dev"] = {"mean": float(dev.mean()), "sd": _spread(dev)} | {
            name: float(values.mean()) for name, values in ratios["dev"].items()
        }
    for moment in TEACHER:
        if all(moment in cell for cell in cells):
            record[moment] = {
                split: {name: float(np.mean([cell[moment][split][name] for cell in cells])) for name in sets}
                for split, sets in cells[0][moment].items()
            }
    record["longest_stage_seconds"] = max(cell["stage_seconds"] for cell in cells)
    return record | verdicts_of(record, line.entry, table)


def _tested(differences: Sequence[np.ndarray]) -> dict[str, float]:
    """Mean of the data sets' mean differences, `(queries,)` each, and how likely chance alone makes it."""
    return {"difference": float(np.mean([values.mean() for values in differences])), "p": p_value(differences)}


def verdicts_of(record: Mapping[str, Any], entry: Entry, table: Table) -> dict[str, Any]:
    """What was expected of the line of which `record` tells, and the verdicts on it."""
    row, mean = entry.row, record["retention"]["mean"]
    tolerance = table.tolerance if row.tolerance is None else row.tolerance
    verdicts: dict[str, Verdict] = {"expected": near(mean, entry.expected(), tolerance)}
    if row.minimum is not None:
        verdicts["minimum"] = at_least(mean, row.minimum)
        if table.worst_within is not None:
            verdicts["worst"] = at_least(record["worst"]["retention"], mean - table.worst_within)
    if table.seconds is not None:
        verdicts["seconds"] = "OK" if record["longest_stage_seconds"] <= table.seconds else "FAIL"
    expectation = {"expected": entry.expected(), "minimum": row.minimum, "tolerance": tolerance, "verdicts": verdicts}
    return expectation | {"verdict": worst_of(list(verdicts.values()))}


def judged(claim: Claim, lines: Mapping[str, Measured]) -> dict[str, Any]:
    """A paired t-test over the queries of the claim's split, seeds averaged, sets alike; UserError without queries."""
    better, worse = (lines[name] for name in claim.order)
    if claim.split not in better.scores[0]:
        raise UserError(f"the run has no judged {claim.split} queries, on which {' > '.join(claim.order)} is judged")
    by_split = {
        split: _tested([better.by_query(split, name) - worse.by_query(split, name) for name in datasets])
        for split, datasets in better.scores[0].items()
    }
    return judgement(claim, by_split[claim.split], by_split.get("dev"))


def judgement(claim: Claim, test: Mapping[str, Any], dev: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is said of a claim by `difference`, by which its first row is better, and `p`, that chance alone makes it.

    `dev`: the same on dev queries, whose verdict stands beside that on test: whoever chooses a row chooses by it.
    """
    difference, p = test["difference"], test["p"]
    record = {"order": claim.order, "paper": claim.paper, "difference": difference, "p": p}
    record |= {"verdict": _verdict(claim, difference, p)}
    if claim.split == "dev":
        record |= {"split": "dev"}
    elif dev:
        record |= {"dev": {**dev, "verdict": _verdict(claim, dev["difference"], dev["p"])}}
    return record | claim.explained()


def _verdict(claim: Claim, difference: float, p: float) -> Verdict:
    """Better: OK with p below the claim's, OKish where it is better or equal, else FAIL. No worse: OK where it is
    better or equal, OKish where it may be chance that it is not, else FAIL.
    """
    surely, ahead = p < claim.p, difference >= 0
    if claim.says == "better":
        return "FAIL" if not ahead else "OK" if surely and difference > 0 else "OKish"
    return "OK" if ahead else "FAIL" if surely else "OKish"


def claim_line(claim: Mapping[str, Any]) -> str:
    better, worse = claim["order"]
    here = f"{claim['difference']:+.4f}, p {claim['p']:.3g}"
    note = f"; differs: {claim['differs']}" if claim.get("differs") else ""
    where = f"{claim['split']} " if "split" in claim else ""
    if dev := claim.get("dev"):
        here += f"; dev {dev['verdict']} {dev['difference']:+.4f}, p {dev['p']:.3g}"
    sign = ">" if claim.get("says", "better") == "better" else ">="
    return f"{claim['verdict']:5} {better} {sign} {worse}: {where}{here} (paper: {claim['paper']}){note}"


def failures(rows: Mapping[str, Mapping[str, Any]], claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """What has the verdict FAIL; of the claims only those that no `differs` explains."""
    missed = [
        f"{name} ({', '.join(kind for kind, verdict in row['verdicts'].items() if verdict == 'FAIL')})"
        for name, row in rows.items()
        if row["verdict"] == "FAIL"
    ]
    unlike = [claim for claim in claims if claim["verdict"] == "FAIL" and not claim.get("differs")]
    than = {"better": "not above", "no worse": "below"}
    return missed + [
        f"{claim['order'][0]} is {than[claim.get('says', 'better')]} {claim['order'][1]}" for claim in unlike
    ]


def _over_sets(ratios: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean over data sets, `(seeds,)`."""
    return np.mean(list(ratios.values()), axis=0)


def _spread(values: np.ndarray) -> float | None:
    """Standard deviation over seeds; None of one."""
    return float(values.std(ddof=1)) if len(values) > 1 else None
