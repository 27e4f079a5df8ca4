"""The scaling laws: fits against planted laws, the entropy against its formula, and a sweep of tiny towers."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from teach_fakes import PARAMS as TEACHER
from teach_fakes import qrels, queries, write_tower, write_world

from bench.scaling import __main__ as bench
from bench.scaling import cells as cells_module
from bench.scaling.cells import asked_of, contrastive_entropy, measured
from bench.scaling.described import Point, read_sweep
from bench.scaling.laws import JointLaw, fit_joint_law, fit_power_law
from bench.tables.pipeline import Pipeline
from bench.teachers.mined import Mined
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.tables import table_from_rows, write_table

ROOT = Path(__file__).parents[2]
SIZES = np.array([2e4, 1e5, 6e5, 2e6])
PAIRS = np.array([500.0, 1000, 2000, 4000])


@pytest.mark.parametrize(("scale", "exponent", "floor"), [(3.82e5, 0.14, 0.18), (2.6e3, 0.5, 0.0), (40.0, 1.3, 2.0)])
def test_planted_power_laws_are_recovered(scale: float, exponent: float, floor: float) -> None:
    law = fit_power_law(SIZES, (scale / SIZES) ** exponent + floor)
    assert law.exponent == pytest.approx(exponent, rel=1e-3) and law.scale == pytest.approx(scale, rel=1e-2)
    assert law.floor == pytest.approx(floor, abs=1e-3) and law.r2 == pytest.approx(1)


@pytest.mark.parametrize(
    ("planted", "sizes", "pairs"),
    [
        ((3.15e5, 0.12, 1.16e2, 770.0, 0.108), SIZES * 3500, PAIRS * 25000),  # the paper's, Eq. 20
        ((3.15e5, 0.12, 1.16e2, 0.4, 0.108), SIZES, PAIRS),
        ((1e4, 0.5, 300.0, 1.2, 1.0), SIZES, PAIRS),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_planted_joint_law_is_recovered_and_foretells_a_larger_cell(
    planted: tuple[float, ...], sizes: np.ndarray, pairs: np.ndarray, noise: float
) -> None:
    truth = JointLaw(*planted, r2=1.0)
    n, d = (axis.ravel() for axis in np.meshgrid(sizes, pairs))
    law = fit_joint_law(n, d, truth.at(n, d) * (1 + noise * np.random.default_rng(0).standard_normal(len(n))))
    assert law.r2 > 0.99
    larger = sizes[-1:] * 4, pairs[-1:] * 2
    assert law.at(*larger) == pytest.approx(truth.at(*larger), rel=1e-3 if not noise else 0.05)
    if not noise:
        assert law.n_exponent == pytest.approx(planted[1], rel=0.02)
        # an exponent so large that the law is an exponential of 1 / D: only their product can be told
        expected = planted[2:4] if planted[3] < 100 else (planted[2] * planted[3],)
        fitted = (law.d_scale, law.d_exponent) if planted[3] < 100 else (law.d_scale * law.d_exponent,)
        assert fitted == pytest.approx(expected, rel=0.02)


def test_losses_that_hardly_fall_have_a_law_of_finite_coefficients() -> None:
    for losses in ([6.03, 6.02, 6.005, 5.98], [6.0, 5.98, 5.95, 5.9], [1.0, 2.0, 3.0, 4.0]):
        law = fit_power_law(SIZES, np.array(losses))
        assert np.isfinite([law.scale, law.exponent, law.floor]).all()
        assert law.at(SIZES) == pytest.approx(np.array(losses), abs=np.ptp(losses))


def test_the_entropy_is_that_of_the_formula() -> None:
    draws = np.random.default_rng(1)
    positives, negatives = draws.normal(size=5), draws.normal(size=(5, 7))
    for entropy, positive_score, negative_scores in zip(
        contrastive_entropy(positives, negatives, 0.05), positives, negatives, strict=True
    ):
        parts = [math.exp(score / 0.05) for score in (positive_score, *negative_scores)]
        assert entropy == pytest.approx(-math.log(parts[0] / sum(parts)), rel=1e-9)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in which mine is done, in whose folder the bench runs."""
    write_world(tmp_path / "made")
    (tmp_path / "data/mine").mkdir(parents=True)
    (tmp_path / "made/ingest").rename(tmp_path / "data/ingest")
    (tmp_path / "made/mine").rename(tmp_path / "data/mine/relevance")
    write_table(tmp_path / "data/ingest", "relevance", table_from_rows("relevance", []))
    write_tower(tmp_path / "base")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["teach"]["teacher"]["dense"] = TEACHER.model_dump() | {"base": str(tmp_path / "base/tower")}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep(**changes: Any) -> Path:
    """A sweep of four tiny sizes and four numbers of triplets."""
    sizes = {f"d{dim}": {"layers": 1, "dim": dim, "heads": 1, "vocabulary": 80} for dim in (8, 12, 16, 24, 32)}
    described = {"held_out": {"size": sizes.pop("d32"), "pairs": 32}, "sizes": sizes, "pairs": [8, 12, 16, 24]}
    described |= {"queries": 4, "negatives": 9, "seed": 3, "teacher": {"epochs": 1.0, "dev_queries": 0}}
    path = Path("sweep.yaml")
    path.write_text(yaml.safe_dump(described | changes, sort_keys=False))
    return path


def test_negatives_are_of_the_same_number_and_never_relevant(run: Path) -> None:
    mined, described = Mined(Pipeline(run)), read_sweep(sweep())
    query_set = asked_of(mined, described)
    assert query_set.negatives.shape == (4, 9) and len(set(query_set.texts)) == 4
    ids = mined.pipeline.corpus["d"][1]
    relevant = {row["query_id"]: row["doc_id"] for row in qrels()}
    asked_as = {row["text"]: row["query_id"] for row in queries()}
    for text, positive, negatives in zip(query_set.texts, query_set.positives, query_set.negatives, strict=True):
        assert ids[positive] == relevant[asked_as[text]]
        assert len(set(negatives)) == 9 and positive not in negatives
    with pytest.raises(UserError, match="has no 64 irrelevant documents; lower `negatives`"):
        asked_of(mined, described.model_copy(update={"negatives": 64}))


@pytest.mark.medium
def test_the_laws_of_a_sweep_are_fitted_and_drawn(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = JointLaw(2e3, 0.4, 6.0, 0.8, 0.5, r2=1.0)

    def planted(point: Point, *_: object) -> tuple[dict[str, Any], bool]:
        size = 1000 * point.size.dim
        return {"parameters": size, "pairs": point.pairs, "entropy": float(truth.at(size, point.pairs))}, True

    (run / "docs/images").mkdir(parents=True)
    monkeypatch.setattr(bench, "measured", planted)
    monkeypatch.setattr(sys, "argv", ["bench.scaling", "--sweep", str(sweep())])
    bench.main()
    result = read_json(run / bench.RESULT)
    assert len(result["cells"]) == 17 and result["cells"][-1]["size"] == "held_out"
    assert [result["laws"][name]["points"] for name in ("size", "data", "joint")] == [4, 4, 16]
    assert result["laws"]["joint"]["n_exponent"] == pytest.approx(0.4, rel=0.01)
    assert result["laws"]["held_out"]["relative_error"] == pytest.approx(0, abs=1e-3)
    picture = (run / "docs/images/scaling-dark.svg").read_text()
    assert picture.startswith("<svg xmlns") and "var(" not in picture and "held out" in picture


@pytest.mark.medium
def test_a_cell_is_trained_measured_and_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described, mined = read_sweep(sweep()), Mined(Pipeline(run))
    point = described.points()[0]
    figures, is_cached = measured(point, described, mined, "sweep.yaml")
    assert not is_cached and figures["pairs"] == 8 and figures["queries"] == 4
    # a layer of 8: attention 4 (8 * 8 + 8), forward 8 * 32 + 32 + 32 * 8 + 8, two norms 32, that of the embeddings 16;
    # and the map to 16
    assert figures["parameters"] == 288 + 552 + 32 + 16 + 8 * 16 + 16
    assert 0 < figures["entropy"] < 40
    monkeypatch.setattr(cells_module, "measure", lambda *_: pytest.fail("measured twice"))
    assert measured(point, described, mined, "sweep.yaml") == (figures, True)
    monkeypatch.setattr(cells_module, "measure", lambda *_: {})
    assert measured(described.points()[1], described, mined, "sweep.yaml") == ({}, False)
