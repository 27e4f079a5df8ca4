"""python -m bench.scaling [--run FOLDER] [--sweep FILE]: scaling laws of dual encoders (ScalingNote, Sec. 4.4).

Towers of the sizes that FILE (bench/scaling.yaml) names are trained from random weights on as many mined triplets as
it says, from a run in which `mine` is done (FOLDER; default: the present one), and measured by their contrastive
entropy on dev queries. Eq. 18 is fitted to the sizes at the most triplets, Eq. 19 to the triplets of the largest size,
and Eq. 20 to all cells but the last, which it foretells. A finished cell is kept below .cache/bench-scaling, so a
killed sweep goes on. Writes bench/results/scaling.json and docs/images/scaling-{light,dark}.svg.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.machine import recording, write_record
from bench.picture import IMAGES, SCHEMES, as_file
from bench.scaling.cells import measured
from bench.scaling.described import HELD_OUT, Sweep, read_sweep
from bench.scaling.drawn import draw_laws
from bench.scaling.laws import fit_joint_law, fit_power_law
from bench.tables.pipeline import Pipeline
from bench.teachers.mined import Mined, data_of
from slimtower.common.errors import UserError

SWEEP = Path("bench/scaling.yaml")
RESULT = Path("bench/results/scaling.json")


def swept(sweep: Sweep, mined: Mined, where: str) -> list[dict[str, Any]]:
    """The cells, the one that is held out last; a line a cell as it is done."""
    cells, points = [], sweep.points()
    for number, point in enumerate(points, start=1):
        label = f"scaling {number}/{len(points)}: {point.name}, {point.pairs} triplets"
        print(f"{label} ...", file=sys.stderr, flush=True)
        figures, is_cached = measured(point, sweep, mined, where)
        origin = "known" if is_cached else f"{figures['seconds']:.0f} s"
        print(f"{label}, {figures['parameters']:,} parameters: entropy {figures['entropy']:.4f} ({origin})", flush=True)
        cells.append({"size": point.name} | figures)
    return cells


def fitted(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The laws of all cells but `held_out`, and what Eq. 20 says of that one."""
    grid = [cell for cell in cells if cell["size"] != HELD_OUT]
    held_out = next(cell for cell in cells if cell["size"] == HELD_OUT)
    n, d, losses = (
        np.array([cell[key] for cell in grid], dtype=np.float64) for key in ("parameters", "pairs", "entropy")
    )
    most_pairs, largest = d == d.max(), n == n.max()
    joint = fit_joint_law(n, d, losses)
    foretold = float(joint.at(np.array(held_out["parameters"]), np.array(held_out["pairs"])))
    return {
        "size": asdict(fit_power_law(n[most_pairs], losses[most_pairs])) | {"points": int(most_pairs.sum())},
        "data": asdict(fit_power_law(d[largest], losses[largest])) | {"points": int(largest.sum())},
        "joint": asdict(joint) | {"points": len(grid)},
        "held_out": {"foretold": foretold, "measured": held_out["entropy"],
                     "relative_error": foretold / held_out["entropy"] - 1},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path(), help="a pipeline's folder in which mine is done")
    parser.add_argument("--sweep", type=Path, default=SWEEP, help="sizes and numbers of triplets; default: %(default)s")
    words = parser.parse_args()
    mined = Mined(Pipeline(words.run))
    if not (mined.pipeline.mine / "triplets.parquet").is_file():
        raise UserError(f"{mined.pipeline.mine}: no triplets; run the pipeline up to mine there, or name another --run")
    sweep = read_sweep(words.sweep)
    with TemporaryDirectory(prefix="bench-scaling.") as cache:
        os.environ["SLIMTOWER_CACHE"] = cache  # a killed cell begins anew
        cells = swept(sweep, mined, str(words.sweep))
    laws = fitted(cells)
    write_record(RESULT, {"sweep": sweep.model_dump(), "data": data_of(mined), "cells": cells, "laws": laws})
    for scheme in SCHEMES:
        (IMAGES / f"scaling-{scheme}.svg").write_text(as_file(draw_laws(cells, laws), scheme), encoding="utf-8")
    for name in ("size", "data", "joint"):
        print(f"scaling: {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in laws[name].items()))
    print("scaling: held out: " + ", ".join(f"{key} {value:.4g}" for key, value in laws["held_out"].items()))
    print(f"wrote {IMAGES}/scaling-*.svg")


if __name__ == "__main__":
    recording(main)
