"""What was measured is not measured again: each system is known by all that its result depends on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import evaluate, fake_systems, params, write_inputs

from slimtower.common.files import cache_root
from steps.core.judged import read_judged_sets
from steps.core.tables import read_table, write_table
from steps.evaluate import cache
from steps.evaluate.cache import measure_all
from steps.evaluate.figures import measured_figures
from steps.evaluate.figures.effort import SearchEffort
from steps.evaluate.insight import measure_figures
from steps.evaluate.judging import read_texts
from steps.evaluate.measuring import ARRAYS, RESULT, Result, Task
from steps.evaluate.params import SPLITS
from steps.evaluate.systems import Systems

pytestmark = pytest.mark.medium

KNOWN = {"static": 1, "2l": 4}
ALL = ["bm25", "teacher", "static", "2l"]


def task_of(root: Path, unjudged: tuple[str, ...] = (), **changes: object) -> Task:
    settings = params(**changes)
    texts = read_texts(root / "ingest", [root / "distill" / name for name in KNOWN], unjudged, settings.seed)
    return Task(read_judged_sets(root / "ingest", SPLITS), texts, settings)


@pytest.fixture
def systems(tmp_path: Path) -> Systems:
    return fake_systems(tmp_path, write_inputs(tmp_path), **KNOWN)


def test_a_changed_student_is_measured_alone(
    tmp_path: Path, systems: Systems, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = evaluate(systems, tmp_path)
    first = json.loads((reports / "metrics.json").read_text())
    changed = fake_systems(tmp_path, write_inputs(tmp_path), static=1, **{"2l": 3})
    evaluate(changed, tmp_path)
    assert "evaluate: measured 2l; bm25, teacher, static from the cache\n" in capsys.readouterr().out
    fakes: dict[str, Any] = {system.name: system.release for system in (changed.teacher, *changed.students)}
    assert {name for name, release in fakes.items() if release.searched} == {"2l"}
    second = json.loads((reports / "metrics.json").read_text())
    of_models = [(first[part], second[part]) for part in ("latency", "sizes", "retention")]
    of_models += [(first["datasets"][name], second["datasets"][name]) for name in ("api", "med")]
    for before, after in of_models:
        assert before.pop("2l") != after.pop("2l") or before is first["sizes"]
        assert before == after


def teacher_of_another_content(systems: Systems) -> Systems:
    return replace(systems, teacher=replace(systems.teacher, content="other"))


def test_what_a_result_depends_on_is_measured_again_and_nothing_else(
    tmp_path: Path, systems: Systems, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(compared: Systems = systems, **changes: object) -> tuple[list[str], list[str]]:
        measurements = measure_all(compared, task_of(tmp_path, **changes))
        return measurements.measured, measurements.timed

    def without_first_row(table: str) -> None:
        write_table(tmp_path / "ingest", table, read_table(tmp_path / "ingest", table).slice(1))

    measure_all(systems, task_of(tmp_path))
    assert again(budget_ms=3.0) == ([], []), "of the report alone"
    assert again(measures=["R@5"]) == (ALL, [])
    assert again(seed=14) == (ALL, ALL[1:])
    assert again(teacher_of_another_content(systems)) == (ALL[1:], ["teacher"])
    without_first_row("corpus")
    assert again(fake_systems(tmp_path, {"api": {}, "med": {}}, **KNOWN))[0] == ["bm25"]
    without_first_row("qrels")
    assert again()[0] == ALL
    monkeypatch.setattr(cache, "_surroundings", lambda: ("another processor",))
    assert again() == (ALL, ALL[1:])


def test_a_failure_keeps_what_was_measured_before_it(tmp_path: Path, systems: Systems) -> None:
    def broken(texts: list[str]) -> np.ndarray:
        raise RuntimeError("no")

    static, deeper = systems.students
    with pytest.raises(RuntimeError):
        measure_all(replace(systems, students=[static, replace(deeper, trained=broken)]), task_of(tmp_path))
    measurements = measure_all(systems, task_of(tmp_path))
    assert (measurements.measured, measurements.timed) == (["2l"], ALL[1:])
    assert measurements.describe() == "measured 2l; timed teacher, static; bm25 from the cache"


def test_a_result_that_a_power_failure_cut_is_measured_anew(
    tmp_path: Path, systems: Systems, capsys: pytest.CaptureFixture[str]
) -> None:
    first = measure_all(systems, task_of(tmp_path))
    for name in (RESULT, ARRAYS):
        [cut] = [path for path in cache_root().rglob(name) if b'"static"' in (path.parent / RESULT).read_bytes()]
        cut.write_bytes(cut.read_bytes()[:40])
        again = measure_all(systems, task_of(tmp_path))
        assert again.measured == ["static"] and "cannot be read" in capsys.readouterr().err
        for before, after in zip(first.results["static"].scored, again.results["static"].scored, strict=True):
            assert before.values["nDCG@10"].tolist() == after.values["nDCG@10"].tolist()


def test_a_result_is_read_as_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path, judged=("api",)), **KNOWN)
    measured: dict[str, Result] = {}
    write = cache.write_result
    monkeypatch.setattr(
        cache, "write_result", lambda folder, result: (measured.update({result.name: result}), write(folder, result))
    )
    stored = measure_all(systems, task_of(tmp_path, unjudged=("med",))).results
    teacher, student = measured["teacher"], measured["2l"]
    assert teacher.indexes and student.closeness and student.serving
    assert list(measured) == list(stored) == ALL
    for name, result in measured.items():
        assert_equal(vars(stored[name]), vars(result))


def assert_equal(actual: Any, expected: Any) -> None:
    """Equal through dataclasses, mappings and sequences, arrays with their types."""
    if isinstance(actual, np.ndarray):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
    elif hasattr(actual, "__dataclass_fields__"):
        assert_equal(vars(actual), vars(expected))
    elif isinstance(actual, dict):
        assert actual.keys() == expected.keys()
        for key, value in actual.items():
            assert_equal(value, expected[key])
    elif isinstance(actual, list):
        for item, expected_item in zip(actual, expected, strict=True):
            assert_equal(item, expected_item)
    else:
        assert actual == expected


def test_the_results_used_last_are_kept(tmp_path: Path, systems: Systems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MIN_RESULTS", 7)  # four results and three latencies
    monkeypatch.setattr(cache, "_SYSTEM", 1)
    for size in (10, 11, 12):
        measure_all(systems, task_of(tmp_path, latency_queries=size))
    assert measure_all(systems, task_of(tmp_path, latency_queries=10)).measured == [], "used today"
    monkeypatch.setattr(cache, "_DAY", -1)
    for size in (11, 12):
        measure_all(systems, task_of(tmp_path, latency_queries=size))
    assert measure_all(systems, task_of(tmp_path, latency_queries=12)).measured == []
    assert measure_all(systems, task_of(tmp_path, latency_queries=10)).measured == ALL


def test_a_second_look_is_known_by_all_that_it_depends_on(
    tmp_path: Path, systems: Systems, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    measure = SearchEffort.measure
    monkeypatch.setattr(
        SearchEffort,
        "measure",
        lambda self, evaluated: (looked.append(evaluated.tower.name), measure(self, evaluated))[1],
    )

    def measured_towers(compared: Systems, **changes: object) -> list[str]:
        looked.clear()
        task = task_of(tmp_path, analyses=["effort"], **changes)
        figures = measure_figures(
            measured_figures(task.params), compared, task, measure_all(compared, task).results["teacher"]
        )
        assert set(figures["effort"]) == set(ALL[1:]) and set(figures) == {"effort", "perturbed"}
        return list(dict.fromkeys(looked))

    assert measured_towers(systems) == ALL[1:]
    assert measured_towers(systems, latency_queries=11) == []
    assert measured_towers(systems, seed=14) == ALL[1:]
    assert measured_towers(fake_systems(tmp_path, write_inputs(tmp_path), static=1, **{"2l": 3})) == ["2l"]
    assert measured_towers(teacher_of_another_content(systems)) == ALL[1:]
