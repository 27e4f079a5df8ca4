"""Retention and paired tests against numbers worked out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student_t
from scipy.stats import ttest_ind

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.core.measures import counted_sets, joint_means, units, weights
from steps.evaluate.comparing import bootstrap_means, compare, of_one_spec, p_value, retention, seed_lines, spreads


def test_three_definitions_by_hand() -> None:
    paired = {
        "easy": (np.array([0.9, 0.7]), np.array([1.0, 0.6])),  # 0.8 / 0.8 = 1.0
        "hard": (np.array([0.1, 0.2]), np.array([0.2, 0.3])),  # 0.15 / 0.25 = 0.6
    }
    overall, by_set = retention(paired, samples=200, seed=1)
    assert overall["mean_of_ratios"] == pytest.approx((1.0 + 0.6) / 2)
    assert overall["ratio_of_means"] == pytest.approx((0.8 + 0.15) / (0.8 + 0.25))
    assert overall["worst"] == pytest.approx(0.6)
    assert overall["ci95_low"] <= overall["mean_of_ratios"] <= overall["ci95_high"]
    assert {name: share["ratio"] for name, share in by_set.items()} == pytest.approx({"easy": 1.0, "hard": 0.6})
    assert all(share["ci95_low"] <= share["ratio"] <= share["ci95_high"] for share in by_set.values())
    teacher = paired["hard"][1]
    same_share, _ = retention({"a": (0.9 * teacher, teacher)}, samples=100, seed=0)
    assert (same_share["ci95_low"], same_share["ci95_high"]) == pytest.approx((0.9, 0.9))


def test_data_sets_that_count_as_one_are_one_mean() -> None:
    paired = {
        "cqadupstack-a": (np.array([0.4, 0.2]), np.array([0.5, 0.5])),
        "cqadupstack-b": (np.array([0.9]), np.array([0.9])),
        "other": (np.array([0.5, 0.5]), np.array([1.0, 1.0])),
    }
    overall, by_set = retention(paired, 200, 1, ["cqadupstack"])
    joint_ratio = (0.3 + 0.9) / (0.5 + 0.9)
    assert overall["mean_of_ratios"] == pytest.approx((joint_ratio + 0.5) / 2)
    assert overall["ratio_of_means"] == pytest.approx((0.6 + 0.5) / (0.7 + 1.0))
    assert {name: share["ratio"] for name, share in by_set.items()} == pytest.approx(
        {"cqadupstack": joint_ratio, "other": 0.5}
    )
    assert weights(list(paired), ["cqadupstack"]) == [0.25, 0.25, 0.5]
    assert units(["cqadupstack", "b-c", "b"], ["b", "x"]) == {"cqadupstack": ["cqadupstack"], "b": ["b-c", "b"]}
    sets = {name: {"teacher": {"nDCG@10": float(values[1].mean())}} for name, values in paired.items()}
    joint = joint_means(sets, ["cqadupstack"])
    assert joint == {"cqadupstack": {"teacher": {"nDCG@10": pytest.approx(0.7)}}}
    counted = counted_sets({"datasets": sets, "as_one": joint})
    assert {name: models["teacher"]["nDCG@10"] for name, models in counted.items()} == {
        "cqadupstack": 0.7,
        "other": 1.0,
    }


def test_a_weighted_t_test_is_welchs_of_the_weighted_means() -> None:
    random = np.random.default_rng(0)
    small, large = random.normal(0.1, 1, 12), random.normal(0.3, 2, 30)
    expected = ttest_ind(0.25 * small, -0.75 * large, equal_var=False).pvalue
    assert p_value([small, large], [0.25, 0.75]) == pytest.approx(expected)
    assert p_value([small, large], [0.5, 0.5]) == pytest.approx(p_value([small, large]))


def test_bootstrap_spread_agrees_with_the_delta_method() -> None:
    random = np.random.default_rng(0)
    teacher = random.uniform(0.4, 1.0, 500)
    student = teacher * random.uniform(0.8, 1.0, 500)
    means = bootstrap_means({"a": (student, teacher)}, samples=2000, seed=3)["a"]
    draws = means[0] / means[1]
    ratio = student.mean() / teacher.mean()
    expected = np.std(student - ratio * teacher) / math.sqrt(500) / teacher.mean()
    assert draws.std() == pytest.approx(expected, rel=0.1)
    assert draws.mean() == pytest.approx(ratio, abs=3 * expected / math.sqrt(2000) + 1e-3)


def test_a_data_set_where_the_teacher_finds_nothing_is_left_out_and_one_must_be_left() -> None:
    lit, dark = (np.array([0.4, 0.2]), np.array([0.5, 0.5])), (np.array([0.3, 0.0]), np.zeros(2))
    alone, with_dark = retention({"lit": lit}, 100, 0), retention({"lit": lit, "dark": dark}, 100, 0)
    assert with_dark == alone and set(with_dark[1]) == {"lit"}
    _, joint = retention({"x-lit": lit, "x-dark": dark}, 100, 0, ["x"])  # the mean over them is above 0
    assert joint["x"]["ratio"] == pytest.approx((0.3 + 0.15) / 0.5)
    with pytest.raises(UserError, match="'dark'"):
        retention({"dark": dark}, samples=100, seed=0)


def test_paired_t_test_by_hand() -> None:
    student, teacher = np.array([0.5, 0.4, 0.9, 0.0]), np.array([0.6, 0.4, 0.7, 0.5])
    difference = [-0.1, 0.0, 0.2, -0.5]
    mean = sum(difference) / 4
    variance = sum((value - mean) ** 2 for value in difference) / 3
    statistic = mean / math.sqrt(variance / 4)
    result = compare(student, teacher)
    expected = pytest.approx(2 * student_t.sf(abs(statistic), df=3))
    assert result == {"p_value": expected, "wins": 1, "ties": 1, "losses": 2}


def test_students_that_differ_in_their_seed_alone_are_told_with_their_spread(tmp_path: Path) -> None:
    for student, layers in (("4l", [0, 3]), ("static", None), ("4l_b", [0, 3]), ("2l", [0])):
        seed = 8 if student == "4l_b" else 7
        write_json(tmp_path / student / "report.json", {"spec": {"layers": layers, "epochs": 1.0}, "seed": seed})
    write_json(tmp_path / "4l_again/report.json", {"spec": {"layers": [0, 3], "epochs": 1.0}, "seed": 7})
    assert of_one_spec(tmp_path, ["4l", "4l_again"]) == [], "one student of one seed is no spread"
    groups = of_one_spec(tmp_path, ["4l", "static", "4l_b", "4l_again", "2l"])
    assert groups == [["4l", "4l_b"]]
    by_student = spreads({"4l": {"mean_of_ratios": 0.98}, "4l_b": {"mean_of_ratios": 0.96}}, groups)
    assert by_student["4l"] == {"others": ["4l_b"], "mean": pytest.approx(0.97), "sd": pytest.approx(0.02 / 2**0.5)}
    [line] = seed_lines({"seeds": by_student})
    assert "97.0%" in line and "1.4 points" in line
    assert spreads({}, groups) == {}, "nothing is judged"
