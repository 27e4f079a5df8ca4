"""About how long stages take: by what they took before on this machine, else by the demo's record, by documents."""

import json
from pathlib import Path

import pytest

from pipeline import progress
from pipeline.progress import RECORD, RECORD_DOCUMENTS, expected_seconds, record_seconds

ROOT = Path(__file__).parents[2]


def test_a_run_of_the_project_follows_the_record_until_it_was_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "RECORD", ROOT / RECORD)
    recorded = json.loads((ROOT / RECORD).read_text(encoding="utf-8"))["stage_seconds"]
    assert expected_seconds(recorded, RECORD_DOCUMENTS) == pytest.approx(recorded)
    assert expected_seconds({"embed"}, 3 * RECORD_DOCUMENTS) == {"embed": pytest.approx(3 * recorded["embed"])}
    record_seconds({"embed": 100.0, "index": 5.0}, 2000)
    assert expected_seconds({"embed", "index"}, 1000) == {"embed": 50.0, "index": 2.5}
    record_seconds({"embed": 10.0}, 1000)  # the last run counts
    assert expected_seconds({"embed", "index"}, 1000) == {"embed": 10.0, "index": 2.5}


def test_a_recipe_has_no_forecast_before_its_first_run_and_one_of_its_own_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "RECORD", ROOT / RECORD)
    monkeypatch.setenv("SLIMTOWER_RECIPE", "recipes/beir.yaml")
    assert expected_seconds({"embed"}, 1000) == {}
    record_seconds({"embed": 40.0}, 1000)
    assert expected_seconds({"embed"}, 500) == {"embed": 20.0}
    assert expected_seconds({"embed", "distill@new"}, 500) == {}  # of a part of the stages nothing is said
    monkeypatch.setenv("SLIMTOWER_RECIPE", "recipes/scifact.yaml")
    assert expected_seconds({"embed"}, 500) == {}


def test_a_damaged_file_of_times_forecasts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_RECIPE", "recipes/beir.yaml")
    for damage in ("", "[]", "{", '{"embed": 3'):
        record_seconds({"embed": 4.0}, 100)
        assert expected_seconds({"embed"}, 100) == {"embed": 4.0}
        progress._times_file().write_text(damage)
        assert expected_seconds({"embed"}, 500) == {}
