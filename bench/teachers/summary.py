"""From per-query figures of all seeds to a table: means, spreads, differences with paired tests, and verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.tables.verdicts import Verdict, judgement, near
from bench.teachers.described import Table
from slimtower.common.errors import UserError
from steps.evaluate.comparing import p_value

Cells = Sequence[Mapping[str, Any]]  # one a seed


def summary(cells: Cells) -> dict[str, Any]:
    """Triplets, mean seconds, and nDCG@10 by split: mean over queries, then data sets, then seeds; sd over seeds.

    `beside_ranker`: mean of what the cells have of it, where the row's run has a ranker.
    """
    times = ("training_seconds", "stage_seconds", "seconds")
    ranker_cells = [cell["beside_ranker"] for cell in cells if "beside_ranker" in cell]
    return {
        "triplets": cells[0]["triplets"],
        "by_source": cells[0]["by_source"],
        **({"beside_ranker": {name: _mean(ranker_cells, name) for name in ranker_cells[0]}} if ranker_cells else {}),
        **{name: _mean(cells, name) for name in times},
        **{split: _quality(cells, split) for split in cells[0]["scores"]},
    }


def difference(cells: Cells, baseline_cells: Cells) -> dict[str, dict[str, float]]:
    """By split, how much more nDCG@10 the first have, and how likely chance alone makes it (paired, two-sided t-test).

    Seeds are averaged first; data sets count alike. UserError where the two were not asked the same queries.
    """
    by_split = {}
    for split in cells[0]["scores"]:
        first, second = by_query(cells, split), by_query(baseline_cells, split)
        if {name: len(row) for name, row in first.items()} != {name: len(row) for name, row in second.items()}:
            raise UserError(f"bench.teachers: rows have other {split} queries than those they are compared with")
        differences = [first[name] - second[name] for name in first]
        by_split[split] = {"difference": float(np.mean([row.mean() for row in differences])), "p": p_value(differences)}
    return by_split


def by_query(cells: Cells, split: str) -> dict[str, np.ndarray]:
    """nDCG@10 of each query of a split, seeds averaged, `(queries,)` by data set."""
    sets = cells[0]["scores"].get(split, {})
    return {name: np.mean([cell["scores"][split][name] for cell in cells], axis=0) for name in sets}


def _mean(cells: Cells, name: str) -> float:
    return float(np.mean([cell[name] for cell in cells]))


def _quality(cells: Cells, split: str) -> dict[str, Any]:
    by_set = {name: float(values.mean()) for name, values in by_query(cells, split).items()}
    seeds = np.array([np.mean([np.mean(row) for row in cell["scores"][split].values()]) for cell in cells])
    sd = float(seeds.std(ddof=1)) if len(seeds) > 1 else None
    return {"ndcg": float(seeds.mean()), "sd": sd, "by_seed": seeds.tolist(), "datasets": by_set}


def row_line(name: str, row: Mapping[str, Any], splits: Sequence[str]) -> str:
    parts = [f"{name}: {row['triplets']:,} triplets, {row['training_seconds']:.0f} s"]
    for split in splits:
        sd = "" if row[split]["sd"] is None else f" (sd {row[split]['sd']:.4f})"
        texts = [f"{split} {row[split]['ndcg']:.4f}{sd}"]
        texts += [
            f"{by_split[split]['difference']:+.4f} to {baseline} (p {by_split[split]['p']:.2g})"
            for baseline, by_split in row["against"].items()
        ]
        parts.append(", ".join(texts))
    if ranker_figures := row.get("beside_ranker"):
        parts.append(
            "on its ranker's pairs " + ", ".join(f"{name} {value:.4f}" for name, value in ranker_figures.items())
        )
    return "; ".join(parts)


def verdicts(result: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """A table, as it was measured or written, with what is expected of it today, and the verdicts.

    Claims about rows that are not in it are left out. UserError for a row or a comparison that it was measured without.
    """
    if unknown := sorted(set(result["rows"]) - set(table.rows)):
        raise UserError(f"table {result['table']}: was measured with other rows ({unknown}); measure it again")
    rows = {}
    for name, line in result["rows"].items():
        expected = table.expected_of(name)
        verdict: Verdict = near(line["test"]["ndcg"], expected, table.tolerance) if "test" in line else "new"
        expectation = {"expected": expected, "tolerance": table.tolerance, "verdicts": {"expected": verdict}}
        rows[name] = {**line, "description": table.rows[name].description, **expectation, "verdict": verdict}
    claims = []
    for claim in table.claims:
        first, second = claim.order
        if {first, second} <= set(rows):
            comparison = rows[first]["against"].get(second) or _turned(rows[second]["against"].get(first, {}))
            if claim.split not in comparison:
                raise UserError(
                    f"table {result['table']}: {first} was not compared with {second} on {claim.split} queries; measure"
                    " it again"
                )
            claims.append(judgement(claim, comparison[claim.split], comparison.get("dev")))
    return {**result, "description": table.description, "rows": rows, "claims": claims}


def _turned(against: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Differences, by split, as the other row has them."""
    return {split: {"difference": -test["difference"], "p": test["p"]} for split, test in against.items()}
