"""The serving benchmark on a tiny project: every part runs, what is missing is said first, broken promises end it."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from promote_project import copy_project

from bench import latency, serving, swap, vectors
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from slimtower.serving.release import load_release
from steps.core.judged import read_judged_sets
from steps.evaluate.scoring import score
from steps.evaluate.systems import dense_search

pytestmark = pytest.mark.medium

COST = {"model": 0.8, "exact": 0.798, "served": 0.796, "lost": 0.005}
ROOT = Path(__file__).parents[2]


class FirstOfItsOwn:
    """Builds: the first in a process of its own, which costs seconds to start, the others here."""

    PIPE = subprocess.PIPE

    def __init__(self) -> None:
        self.run = self.first

    def first(self, command: list[str], **named: Any) -> Any:
        self.run = self.other
        return subprocess.run(command, **named)

    def other(self, command: list[str], **named: Any) -> Any:
        kind: Any = command[-1]
        return SimpleNamespace(stdout=json.dumps(vectors.build_one(Path(command[-2]), kind)))


@pytest.fixture
def project(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny project, every data set with test queries; the bench's sizes are tiny too."""
    folder = tmp_path / "project"
    shutil.copytree(released, folder, ignore=shutil.ignore_patterns("cache", "release"))
    copy_project(released, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # a build runs in a process of its own
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    monkeypatch.setattr(vectors, "subprocess", FirstOfItsOwn())
    write_json(swap.METRICS, {"serving": {dataset: {"2l": COST, "static": COST} for dataset in ("one", "two")}})
    for module, name, size in (
        (latency, "SINGLE", 10), (latency, "BATCHED", 64), (vectors, "SMALL", 700), (vectors, "UPDATED", 1000),
        (vectors, "TRAINED_ON", 700), (serving, "COUNT", 900), (serving, "GRAPH", 800), (serving, "TIMED", 5),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)
    return folder


@pytest.mark.slow
@pytest.mark.nightly
def test_every_part_is_measured_and_the_verdicts_follow(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "verdicts", lambda result: [("all of it", 0.5, 1.0)])
    serving.main()
    assert "OK   all of it: 0.5 (at most 1)" in capsys.readouterr().out
    result = read_json(serving.RESULT)
    for row in result["encoders"]["encoders"].values():
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert set(row["queries_per_second"]) == {"1", "4", "8", "16", "32", "64"}
    assert set(result["encoders"]["encoders"]) >= set(serving.ENCODERS)
    assert {size: set(kinds) for size, kinds in result["end_to_end"].items()} == {
        "700": {"ivfpq", "hnsw"},
        "900": {"ivfpq"},
        "800": {"hnsw"},
    }
    assert set(result["end_to_end"]["900"]["ivfpq"]) == set(serving.ENCODERS)
    assert set(result["seconds"]) == {"encoders", "vectors", "hnsw", "end_to_end", "after_the_swap"}
    monkeypatch.undo()
    listed = {promise: (value, limit) for promise, value, limit in serving.verdicts(result)}
    assert sum(promise.startswith("share of a rebuild to add 1 %") for promise in listed) >= 2
    assert sum(promise.startswith("nDCG@10 lost by serving") for promise in listed) == 4
    swapped = next(
        value for promise, value in listed.items() if "2l on one (export 0.25%, index 0.25%, HNSW" in promise
    )
    assert swapped == (pytest.approx(0.005), 0.01)


def test_what_a_swap_costs_adds_up_and_the_graph_is_searched_as_it_was_tuned(project: Path) -> None:
    costs = swap.measure()
    assert set(costs) == {"one", "two"}
    [judged, _] = read_judged_sets(Path("data/ingest"), ["test"])
    for student in ("static", "2l"):
        cost = costs[judged.dataset][student]
        assert cost["lost_by_export"] + cost["lost_by_index"] == pytest.approx(cost["lost"]) == 0.005
        release = load_release(Path("models/release") / student)
        exact = score(student, dense_search(release.encode, release), judged, 10).values["nDCG@10"].mean()
        assert cost["hnsw"]["recall_at_10"] == 1.0  # 32 documents
        assert cost["hnsw"]["served"] == pytest.approx(exact)
        assert cost["hnsw"]["lost"] == pytest.approx(1 - exact / 0.8)


def kept_promises() -> dict[str, Any]:
    """Measurements that keep every promise."""
    parts = {"lost_by_export": 0.002, "lost_by_index": 0.003, "lost": 0.005, "hnsw": {"lost": 0.004}}
    return {
        "encoders": {"encoders": {"2l.onnx.int8": {"times_faster": 25}, "static.table.int8": {"times_faster": 700}}},
        "vectors": {
            "indexes": {"large": {"ivfpq": {"peak_rss_gib": 3.0, "recall_at_10": 0.95}}},
            "adding_one_percent": {"flat": {"stage": {"share": 0.01}}, "ivfpq": {"share": 0.02}},
        },
        "after_the_swap": {"api": {"2l": parts}},
    }


def test_each_broken_promise_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    serving.judge(kept_promises())
    assert [line[:3] for line in capsys.readouterr().out.splitlines()] == ["OK "] * 7
    for path, value in (
        ("encoders/encoders/2l.onnx.int8/times_faster", 19.9),
        ("encoders/encoders/static.table.int8/times_faster", 299.0),
        ("vectors/indexes/large/ivfpq/peak_rss_gib", 4.1),
        ("vectors/indexes/large/ivfpq/recall_at_10", 0.89),
        ("vectors/adding_one_percent/flat/stage/share", 0.051),
        ("after_the_swap/api/2l/lost", 0.011),
        ("after_the_swap/api/2l/lost", np.nan),
    ):
        result = inner = kept_promises()
        *keys, last = path.split("/")
        for key in keys:
            inner = inner[key]
        inner[last] = value
        with pytest.raises(UserError, match="1 of 7 promises"):
            serving.judge(result)
        assert capsys.readouterr().out.count("FAIL") == 1, path
