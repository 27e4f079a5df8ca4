"""Students that differ in their seed alone: which they are, and mean and spread of their retention."""

from pathlib import Path

import pytest

from slimtower.common.files import write_json
from steps.evaluate.comparing import of_one_spec, seed_lines, spreads


def test_students_that_differ_in_their_seed_alone_are_told_with_their_spread(tmp_path: Path) -> None:
    for student, layers in (("4l", [0, 3]), ("static", None), ("4l_b", [0, 3]), ("2l", [0])):
        seed = 8 if student == "4l_b" else 7
        write_json(tmp_path / student / "report.json", {"spec": {"layers": layers, "epochs": 1.0}, "seed": seed})
    write_json(tmp_path / "4l_again/report.json", {"spec": {"layers": [0, 3], "epochs": 1.0}, "seed": 7})
    assert of_one_spec(tmp_path, ["4l", "4l_again"]) == [], "one student of one seed is no spread"
    groups = of_one_spec(tmp_path, ["4l", "static", "4l_b", "4l_again", "2l"])
    assert groups == [["4l", "4l_b"]]
    found = spreads({"4l": {"mean_of_ratios": 0.98}, "4l_b": {"mean_of_ratios": 0.96}}, groups)
    assert found["4l"] == {"others": ["4l_b"], "mean": pytest.approx(0.97), "sd": pytest.approx(0.02 / 2**0.5)}
    told = "4l, 4l_b: one student with 2 seeds, mean retention 97.0%, standard deviation 1.4 points"
    assert seed_lines({"seeds": found}) == [told]
    assert spreads({}, groups) == {}, "nothing is judged"


def test_reports_of_before_there_were_specs_make_no_group(tmp_path: Path) -> None:
    for student in ("2l", "4l"):
        write_json(tmp_path / student / "report.json", {})
    assert of_one_spec(tmp_path, ["2l", "4l"]) == []
