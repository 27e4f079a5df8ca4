"""The gate's error rates: what the benchmark draws is as worse or better as it says, and judged as promotion judges."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from promote_fakes import evidence, policy

from bench.gate import SEED, accepted, main, tilted
from slimtower.common.files import read_json
from steps.core.tables import table_from_rows, write_table
from steps.promote.gate import decide


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    """1,200 queries like the demo's: most nDCG@10 equal, some won, more lost; candidate and champion."""
    generator = np.random.default_rng(1)
    levels = np.array([0.0, 0.3, 0.43, 0.5, 0.63, 1.0])
    champion = levels[generator.choice(6, 1200, p=[0.2, 0.05, 0.05, 0.1, 0.1, 0.5])]
    candidate = np.where(generator.random(1200) < 0.1, levels[generator.choice(6, 1200)], champion)
    return candidate, champion


@pytest.mark.parametrize("change", [-0.01, 0.0, 0.01, 0.1])
def test_tilting_gives_exactly_the_change_that_was_asked_for(pair, change: float) -> None:
    candidate, champion = pair
    chances = tilted(candidate, champion, change)
    assert chances.sum() == pytest.approx(1)
    assert chances @ candidate == pytest.approx((1 + change) * (chances @ champion), rel=1e-9)


@pytest.mark.medium
def test_the_command_reads_a_demos_reports_and_tells_the_mean_beside_the_range(
    pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, champion = pair
    models = {"static": candidate, "2l": champion, "bm25": champion / 2}
    rows = [
        {"query_id": f"api/q{number:04d}", "dataset": "api", "model": model, "split": split}
        | {"measure": measure, "value": float(value)}
        for model, values in models.items()
        for number, value in enumerate(values)
        for split, measure in (("test", "nDCG@10"), ("test", "RR@10"), ("dev", "nDCG@10"))
    ]
    write_table(tmp_path / "reports", "per_query", table_from_rows("per_query", rows))
    shutil.copyfile(Path(__file__).parents[2] / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.gate.DRAWS", 50)
    monkeypatch.setattr("sys.argv", ["bench.gate"])
    main()
    result = read_json(Path("bench/results/gate.json"))
    assert [(row["champion"], row["candidate"]) for row in result["pairs"]] == [("2l", "static"), ("static", "2l")]
    power = [row["1704"]["better_1_percent"] for row in result["pairs"]]
    assert result["summary"]["1704"]["better_1_percent"] == {
        "least": min(power),
        "mean": pytest.approx(sum(power) / 2),
        "greatest": max(power),
        "enough": sum(value >= 0.8 for value in power),
    }


def test_the_share_is_that_of_decisions(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, champion = pair
    monkeypatch.setattr("bench.gate.DRAWS", 40)
    rules = policy()
    rows = np.random.default_rng(SEED).choice(1200, (60, 40), p=tilted(candidate, champion, 0.01))
    decisions = [decide(evidence(candidate[draw]), evidence(champion[draw]), rules).approved for draw in rows.T]
    assert 0 < sum(decisions) < 40
    assert accepted(candidate, champion, 0.01, 60, rules) == sum(decisions) / 40
