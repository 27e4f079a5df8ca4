"""A finished table: what is written about it, and how it is shown."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.tables.cells import teacher_scores
from bench.tables.expected import TEACHER, Table
from bench.tables.pipeline import Pipeline, Scores
from bench.tables.verdicts import Measured, claim_line, judged, judgement, row_of, verdicts_of, with_teachers
from slimtower.common.errors import UserError
from steps.core.judged import JudgedSet
from steps.core.tables import read_table


def finished(
    name: str,
    table: Table,
    pipeline: Pipeline,
    lines: Mapping[str, Measured],
    left_out: Mapping[str, str],
    seeds: list[int],
) -> dict[str, Any]:
    """The table as it is written: rows, claims, the teacher, and what it was measured on.

    `unseen` of a row: its retention on test queries whose documents no training query has. `above_teacher`: rows that
    keep more than all, in the table's order, each with a paired t-test against the teacher, over all and by data set.
    `orders`: how other teachers of the run order documents beside the index's (steps/score/run.py).
    """
    dims = tuple(sorted({dim for row in table.rows.values() for dim in row.dims}))
    teacher = teacher_scores(pipeline, dims)
    unseen = unseen_queries(pipeline)
    rows = {
        key: row_of(line, teacher["0"], table) | {"unseen": unseen_retention(line, teacher["0"]["test"], unseen)}
        for key, line in lines.items()
    }
    by_row = {line.entry.row_name: line.cells for line in lines.values()}
    cells, compared = [cell for row_cells in by_row.values() for cell in row_cells], with_teachers(lines, teacher["0"])
    result: dict[str, Any] = _rounded(
        {
            "table": name,
            "description": table.description,
            "seeds": seeds,
            "teacher": {dim: _means(scores) for dim, scores in teacher.items()},
            "queries": {split: {key: len(row) for key, row in sets.items()} for split, sets in teacher["0"].items()},
            "rows": rows,
            "same_as": _equal_rows(lines),
            "left_out": dict(left_out),
            "orders": pipeline.orders(),
            "claims": [judged(claim, compared) for claim in table.claims if set(claim.order) <= set(compared)],
            "above_teacher": [
                {"row": key, **row["against_teacher"]} for key, row in rows.items() if row["retention"]["mean"] > 1
            ],
            "machines": list({json.dumps(cell["machine"], sort_keys=True): cell["machine"] for cell in cells}.values()),
            "seconds": sum(cell["stage_seconds"] for cell in cells),
            "git_commit": ", ".join(sorted({cell["git_commit"] for cell in cells})),
        }
    )
    return result


def judged_again(recorded: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """A written table as it is judged today; UserError where it has other rows or claims than today's."""
    rows, claims, entries = recorded["rows"], recorded["claims"], {entry.name: entry for entry in table.entries()}
    taught = {f"{name}/{moment}" for name, row in rows.items() if "teacher_after" in row for moment in TEACHER}
    today = [claim for claim in table.claims if set(claim.order) <= {*rows, *taught}]
    written_claims = [(claim["order"], claim.get("split", "test")) for claim in claims]
    if set(entries) != {*rows, *recorded["left_out"]} or written_claims != [(c.order, c.split) for c in today]:
        raise UserError(f"table {recorded['table']}: was measured with other rows or claims; measure it again")
    judged_rows = {
        name: {**row, "description": entries[name].row.description, "paper": entries[name].row.paper}
        | _rounded(verdicts_of(row, entries[name], table))
        for name, row in rows.items()
    }
    judged_claims = [
        judgement(claim, written, written.get("dev")) for written, claim in zip(claims, today, strict=True)
    ]
    return {**recorded, "description": table.description, "rows": judged_rows, "claims": judged_claims}


def _means(scores: Scores) -> dict[str, dict[str, float]]:
    return {split: {key: sum(row) / len(row) for key, row in sets.items()} for split, sets in scores.items()}


def _equal_rows(lines: Mapping[str, Measured]) -> dict[str, str]:
    """Rows whose cells are those of a row before them, such as layer subsets that coincide at this depth."""
    first: dict[str, str] = {}
    same_rows = {}
    for name, line in lines.items():
        content = repr((line.entry.dim, [(cell["student"], cell["drawn"]) for cell in line.cells], line.scores))
        if first.setdefault(content, name) != name:
            same_rows[name] = first[content]
    return same_rows


def _rounded(value: Any) -> Any:
    """Five digits, but for p-values and other numbers below 0.001, which keep five that count."""
    if isinstance(value, float):
        return round(value, 5) if abs(value) >= 1e-3 else float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def show(result: Mapping[str, Any]) -> None:
    datasets = list(next(iter(result["rows"].values()))["datasets"])
    width = max(map(len, result["rows"]))
    heads = "".join(f" {name:>10}" for name in datasets)
    print(f"\n{result['table']}: {result['description']}")
    print(f"{'row':{width}} retention     sd    dev{heads}  expected     MB  texts/s  seconds  verdict")
    for name, row in result["rows"].items():
        sets = "".join(f" {row['datasets'][key]['retention']:10.2%}" for key in datasets)
        sd = "-" if row["retention"]["sd"] is None else f"{row['retention']['sd']:.2%}"
        dev = f"{row['dev']['mean']:.1%}" if "dev" in row else "-"
        aim = "-" if row["expected"] is None else f"{row['expected']:.2%}"
        aim = aim if row["minimum"] is None else f">={row['minimum']:.1%}"
        paper = ", ".join(f"{key} {value}" for key, value in row["paper"].items())
        print(
            f"{name:{width}} {row['retention']['mean']:9.2%} {sd:>6} {dev:>6}{sets} {aim:>9} {row['bytes'] / 1e6:6.1f}"
            f" {row['texts_per_second']:8.0f} {row['stage_seconds']:8.0f}  {_verdicts(row)}"
            + (f"; paper: {paper}" if paper else "")
        )
    for name, equal_row in result["same_as"].items():
        print(f"{name} is the same student as {equal_row}")
    for name, reason in result["left_out"].items():
        print(f"{name} is left out: {reason}")
    if unfinished := result["left_out"]:
        total = len(result["rows"]) + len(unfinished)
        print(
            f"UNFINISHED: {len(unfinished)} of {total} rows of {result['table']} were not measured, nor the claims that"
            f" name them: {', '.join(unfinished)}; mend what left them out, and measure the table again"
        )
    for above in result["above_teacher"]:
        for name, test in above.get("datasets", {}).items():
            gain = result["rows"][above["row"]]["datasets"][name]["retention"] - 1
            tested = f"{test['difference']:+.4f}, p {test['p']:.3g}"
            print(f"{above['row']} beside the teacher on {name}: {gain:+.1%} ({tested})")
    for claim in result["claims"]:
        print(claim_line(claim))


def _verdicts(row: Mapping[str, Any]) -> str:
    """The row's verdict, and what failed where there are several promises."""
    failed = [kind for kind, verdict in row["verdicts"].items() if verdict == "FAIL"]
    return f"{row['verdict']} ({', '.join(failed)})" if failed else str(row["verdict"])


def unseen_queries(pipeline: Pipeline) -> dict[str, np.ndarray]:
    """By data set, the test queries none of whose relevant documents is relevant to a training query, `(queries,)`."""
    judged = read_table(pipeline.ingest, "qrels").to_pylist()
    seen = {(row["dataset"], row["doc_id"]) for row in judged if row["split"] == "train" and row["grade"] > 0}

    def unseen(item: JudgedSet, query: str) -> bool:
        relevant = [document for document, grade in item.qrels[query].items() if grade > 0]
        return not any((item.dataset, document) in seen for document in relevant)

    return {
        item.dataset: np.array([unseen(item, query) for query in item.query_ids])
        for item in pipeline.judged_sets
        if item.split == "test"
    }


def unseen_retention(
    line: Measured, teacher: Mapping[str, list[float]], chosen: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Student / teacher over some of each data set's test queries, seeds averaged; None where there are none.

    `teacher` holds nDCG@10 of each test query, `chosen` which of them count, both by data set.
    """
    by_set: dict[str, Any] = {}
    for name, mask in chosen.items():
        student, teacher_values = line.by_query("test", name)[mask], np.array(teacher[name])[mask]
        retention = float(student.mean() / teacher_values.mean()) if teacher_values.any() else None
        by_set[name] = {"queries": int(mask.sum()), "retention": retention}
    return by_set
