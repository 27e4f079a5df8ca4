"""python -m bench.teachers TABLE [--only ROW,...] [--seeds 1,2,3] [--judge]: teachers by what they are trained on.

TABLE is one of bench/teachers.yaml. The pipeline is brought up to `mine` in runs/teachers_<table>_<row>, once for all
rows that mine alike. Every row's teacher is then trained with every seed, embeds the whole corpus, and is scored on dev
and test by exact search; each row is compared with zero_shot, which is always measured, and with the rows that it
names, by paired tests; figures and claims are judged as those of students are. The environment variables of the recipe
(DATA) are read. A finished cell is kept below .cache/bench-teachers, so a killed bench goes on. Writes
bench/results/teachers/TABLE.json when all rows and seeds are there, with --unfinished as well without some rows, which
it then names; exits 3 when a verdict is FAIL. With --judge nothing is measured: the written table is judged by what
bench/teachers.yaml expects today.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import begin_record, write_record
from bench.tables.expected import parse_seeds
from bench.tables.verdicts import claim_line, failures
from bench.teachers.cells import measured
from bench.teachers.described import UNTRAINED, Table, Tables, read_tables
from bench.teachers.mined import Mined, Plan, data_of, given_variables, mined, plans
from bench.teachers.summary import difference, row_line, summary, verdicts
from slimtower.common.errors import UserError, guarded
from slimtower.common.files import read_json, write_json

TABLES = Path("bench/teachers.yaml")
RESULTS = Path("bench/results/teachers")


def chosen(words: argparse.Namespace, tables: Tables) -> tuple[Table, list[str], list[int]]:
    """The table, and rows and seeds that were asked for; UserError for names that are not there."""
    if words.table not in tables.tables:
        raise UserError(f"bench.teachers: no table {words.table!r}; {TABLES} has {', '.join(tables.tables)}")
    table = tables.tables[words.table]
    only = words.only.split(",") if words.only else list(table.rows)
    if unknown := [row for row in only if row not in table.rows]:
        raise UserError(f"--only: {words.table} has no row {', '.join(unknown)}; it has {', '.join(table.rows)}")
    rows = [UNTRAINED, *(row for row in table.rows if row in only and row != UNTRAINED)]
    return table, rows, parse_seeds(words.seeds, table.seeds or tables.seeds)


def runs_of(planned: Mapping[str, Plan]) -> dict[str, Mined]:
    """By name, the run of each plan, brought up to date."""
    distinct = {plan.run: plan for plan in planned.values()}
    runs = {}
    for number, (name, plan) in enumerate(distinct.items(), start=1):
        print(f"teachers: mines {number}/{len(distinct)}: runs/{name}", file=sys.stderr, flush=True)
        runs[name] = mined(plan)
    return runs


def measure(
    name: str, table: Table, planned: Mapping[str, Plan], runs: Mapping[str, Mined], seeds: list[int]
) -> dict[str, list[dict[str, Any]]]:
    """The cells of each row, one a seed; a line a row as it is done."""
    cells: dict[str, list[dict[str, Any]]] = {}
    number, total = 0, len(planned) * len(seeds)
    for row, plan in planned.items():
        cells[row] = []
        for seed in seeds:
            number += 1
            print(f"teachers: {name} {number}/{total}: {row}, seed {seed} ...", file=sys.stderr, flush=True)
            figures, is_cached = measured(plan.seeded(seed), runs[plan.run])
            origin = "known" if is_cached else f"{figures['seconds']:.0f} s"
            print(f"teachers: {name} {number}/{total}: {row}, seed {seed}: {origin}", file=sys.stderr, flush=True)
            cells[row].append(figures)
        line = line_of(row, table, cells)
        print(row_line(f"{name} {row}", line, list(figures["scores"])), flush=True)
    return cells


def line_of(row: str, table: Table, cells: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What is told of a row: its summary, and its difference to zero_shot and to those of its `against` in `cells`."""
    baselines = dict.fromkeys(
        baseline for baseline in (UNTRAINED, *table.rows[row].against) if baseline in cells and baseline != row
    )
    against = {baseline: difference(cells[row], cells[baseline]) for baseline in baselines}
    return {"description": table.rows[row].description, **summary(cells[row]), "against": against}


def finished(
    name: str,
    table: Table,
    cells: Mapping[str, list[dict[str, Any]]],
    runs: Mapping[str, Mined],
    data: Mapping[str, Any],
    seeds: list[int],
) -> dict[str, Any]:
    """The table as it is written; `runs` are those that mined for the rows."""
    every = [cell for row in cells.values() for cell in row]
    machines = {json.dumps(cell["machine"], sort_keys=True): cell["machine"] for cell in every}
    result = {
        "table": name,
        "description": table.description,
        "recipe": table.recipe,
        "seeds": seeds,
        "machines": list(machines.values()),
        "git_commit": ", ".join(sorted({cell["git_commit"] for cell in every})),
        "data": data,
        "rows": {row: line_of(row, table, cells) | {"rankers": runs[row].rankers} for row in cells},
    }
    return verdicts(result, table)


def conclude(name: str, result: Mapping[str, Any]) -> None:
    """Print what was expected and claimed, and the verdicts; UserError where one is FAIL."""
    for row, line in result["rows"].items():
        if line["expected"] is not None:
            here = f"nDCG@10 {line['test']['ndcg']:.4f}, expected {line['expected']:.3f} +- {line['tolerance']:g}"
            print(f"{line['verdict']:5} {row}: {here}")
    for claim in result["claims"]:
        print(claim_line(claim))
    if missed := failures(result["rows"], result["claims"]):
        raise UserError(f"bench.teachers {name}: FAIL for {'; '.join(missed)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.teachers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table")
    parser.add_argument("--only", default="", help="rows, separated by commas; absent = all")
    parser.add_argument("--seeds", default="", help="such as 1,2,3; absent = those of bench/teachers.yaml")
    parser.add_argument(
        "--unfinished", action="store_true", help="write a table of the rows of --only; it names the others"
    )
    parser.add_argument("--judge", action="store_true", help="measure nothing: judge the written table anew")
    words = parser.parse_args()
    tables = read_tables(TABLES)
    table, rows, seeds = chosen(words, tables)
    written = RESULTS / f"{words.table}.json"
    if words.judge:
        if not written.is_file():
            raise UserError(f"{written}: not found; measure the table first, without --judge")
        result = verdicts(read_json(written), table)
        write_json(written, result)
        conclude(words.table, result)
        return
    absent = [row for row in table.rows if row not in rows]
    whole = seeds == (table.seeds or tables.seeds) and (not absent or words.unfinished)
    if whole:
        begin_record()
    every = plans(words.table, table, given_variables())
    planned = {row: every[row] for row in rows}
    runs = runs_of(planned)
    with TemporaryDirectory(prefix="bench-teachers.") as cache:
        os.environ["SLIMTOWER_CACHE"] = cache  # a killed cell begins anew: its time is that of a whole training
        cells = measure(words.table, table, planned, runs, seeds)
    row_runs = {row: runs[plan.run] for row, plan in planned.items()}
    result = finished(words.table, table, cells, row_runs, data_of(row_runs[UNTRAINED]), seeds)
    if whole:
        write_record(written, result | {"unmeasured": absent})
        print(f"UNFINISHED: not measured are {', '.join(absent)}" if absent else "with all rows")
    else:
        print(f"{written} stays as it is: this is a part of the table")
    conclude(words.table, result)


if __name__ == "__main__":
    guarded(main)
