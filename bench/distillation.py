"""python -m bench.distillation TABLE [--run FOLDER] [--seeds 1,2,3] [--only ROW,...] [--judge]: distilled students.

TABLE is one of bench/expected.yaml: ladder, ladder_trained, layers, qkd, qkd_magnitude, qkd_fresh, scalingnote, texts,
dims, narrow, frontier, endpoint_starts, trained_medquad, trained_scifact, labels, unlimited, ce_to_de, responses,
label_free_scifact, label_free_medquad, lead_frozen, lead_joint, lead_comparison, lead_batch, layer_temperature, and of
five of them one over the demo: ce_to_de_demo, responses_demo, label_free_demo, lead_frozen_demo, lead_joint_demo.
Every row is distilled with every seed from a run in which `embed` is done (FOLDER; default: the table's `run`), scored
on dev and test by exact search over the teacher's documents, and compared with what is expected of it, each claim of a
paper by a paired test. A finished cell is kept below .cache/bench-distill, so a killed bench goes on. Writes
bench/results/distillation/TABLE.json when all rows and seeds are there, TABLE.RUN.json of another run than the table's;
exits 3 when a verdict is FAIL. With --judge nothing is measured: the written table is judged by what
bench/expected.yaml expects today.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import begin_record, write_record
from bench.tables.cells import STUDENT, make_cell, measured, mixture_of, student_of
from bench.tables.expected import EXPECTED, Expected, Table, parse_seeds, read_expected
from bench.tables.pipeline import Pipeline, Scores, open_pipeline
from bench.tables.report import finished, judged_again, show
from bench.tables.verdicts import Measured, failures
from slimtower.common.errors import UserError, guarded
from slimtower.common.files import read_json, write_json

RESULTS = Path("bench/results/distillation")


def left_out(pipeline: Pipeline, table: Table) -> dict[str, str]:
    """Rows that cannot be measured, and why."""
    reasons = {}
    for name, row in table.rows.items():
        if row.student is None:
            reasons[name] = "its student is not settled yet"
            continue
        if row.subset:
            try:
                student_of(pipeline, table, row)
            except UserError as error:  # the teacher is too shallow for the subset
                reasons[name] = str(error)
        if (mixture := mixture_of(table, row)) and (absent := pipeline.missing(mixture)):
            reasons[name] = f"the run has no texts of {', '.join(absent)}"
        if name in reasons or not isinstance(row.student, dict):
            continue
        student = student_of(pipeline, table, row)
        if learned := pipeline.unscored(student):
            reasons[name] = f"the run has no scores of {', '.join(learned)} (score.teachers, score.layers)"
        if moved := pipeline.untaught(student):
            reasons[name] = f"the run has no teacher {', '.join(moved)} (teach.teachers)"
    return reasons


def measure(name: str, table: Table, pipeline: Pipeline, rows: list[str], seeds: list[int]) -> dict[str, Measured]:
    """Every line of the table that belongs to `rows`, from as many cells as rows and seeds."""
    cells: dict[str, list[dict[str, Any]]] = {}
    total = len(rows) * len(seeds)
    for number, (row, seed) in enumerate(((row, seed) for row in rows for seed in seeds), start=1):
        cell = make_cell(pipeline, table, table.rows[row], seed)
        print(f"table {name} {number}/{total} {row} seed {seed} ...", file=sys.stderr, flush=True)
        figures, old = measured(cell, pipeline)
        means = {dataset: sum(values) / len(values) for dataset, values in _full_scores(figures)["test"].items()}
        scores = ", ".join(f"{dataset} {value:.4f}" for dataset, value in means.items())
        origin = "known" if old else f"{figures['stage_seconds']:.0f} s"
        print(f"table {name} {number}/{total} {row} seed {seed}: test nDCG@10 {scores} ({origin})", flush=True)
        student = cell.params.student[STUDENT].model_dump(exclude_defaults=True)
        cells.setdefault(row, []).append(figures | {"student": student})
    return {
        entry.name: Measured(entry, [cell["scores"][str(entry.dim)] for cell in cells[entry.row_name]],
                             cells[entry.row_name])
        for entry in table.entries()
        if entry.row_name in cells
    }  # fmt: skip


def _full_scores(cell: Mapping[str, Any]) -> Scores:
    """Scores at the greatest dimension that the cell has."""
    return cell["scores"][max(cell["scores"], key=lambda dim: int(dim) or sys.maxsize)]


def chosen(words: argparse.Namespace, expected: Expected, table: Table) -> tuple[list[str], list[int]]:
    """Rows and seeds that were asked for; UserError for a row that the table does not have."""
    rows = words.only.split(",") if words.only else list(table.rows)
    unknown = [row for row in rows if row not in table.rows]
    if unknown:
        raise UserError(f"--only: the table {words.table} has no rows {unknown}; it has {list(table.rows)}")
    return rows, parse_seeds(words.seeds, table.seeds or expected.seeds)


def results_file(name: str, table: Table, run: Path) -> Path:
    """Where a table is written; the name of a run that is not the table's own is in it (`project`: the present one)."""
    if run.resolve() == Path(table.run).resolve():
        return RESULTS / f"{name}.json"
    return RESULTS / f"{name}.{'project' if run.resolve() == Path.cwd() else run.resolve().name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distillation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table")
    parser.add_argument("--run", default="", help="a pipeline's folder in which embed is done; absent = the table's")
    parser.add_argument("--seeds", default="", help="such as 1,2,3; absent = those of bench/expected.yaml")
    parser.add_argument("--only", default="", help="rows, separated by commas; absent = all")
    parser.add_argument("--judge", action="store_true", help="measure nothing: judge the written table anew")
    words = parser.parse_args()
    expected = read_expected(EXPECTED)
    if words.table not in expected.tables:
        raise UserError(f"bench.distillation: no table {words.table!r}; {EXPECTED} has {sorted(expected.tables)}")
    table = expected.tables[words.table]
    run = Path(words.run or table.run)
    written = results_file(words.table, table, run)
    if words.judge:
        if not written.is_file():
            raise UserError(f"{written}: not found; measure the table first, without --judge")
        result = judged_again(read_json(written), table)
        write_json(written, result)
        conclude(words.table, result)
        return
    pipeline = open_pipeline(run)
    if table.sets and set(table.sets) != set(pipeline.corpus):
        raise UserError(
            f"{run}: holds {', '.join(pipeline.corpus)}, but the table {words.table} is of {', '.join(table.sets)}; run"
            " its recipe on these data, or name another run with --run"
        )
    rows, seeds = chosen(words, expected, table)
    absent = left_out(pipeline, table)
    rows = [row for row in rows if row not in absent]
    if not rows:
        raise UserError(f"bench.distillation: nothing to measure of {words.table}: {absent}")
    whole = seeds == (table.seeds or expected.seeds) and {*rows, *absent} == set(table.rows)
    if whole:
        begin_record()
    with TemporaryDirectory(prefix="bench-distill.") as cache:
        os.environ["SLIMTOWER_CACHE"] = cache  # a killed cell begins anew: its time is that of a whole training
        lines = measure(words.table, table, pipeline, rows, seeds)
    result = finished(words.table, table, pipeline, lines, absent, seeds)
    if whole:
        write_record(written, result)
        print("UNFINISHED" if absent else "with all rows")
    else:
        print(f"{written} stays as it is: this is a part of the table")
    conclude(words.table, result)


def conclude(name: str, result: Mapping[str, Any]) -> None:
    """Show a table; UserError where a verdict is FAIL."""
    show(result)
    missed = failures(result["rows"], result["claims"])
    if missed:
        raise UserError(f"bench.distillation {name}: FAIL for {'; '.join(missed)}")


if __name__ == "__main__":
    guarded(main)
