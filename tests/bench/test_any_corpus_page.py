"""The table of many corpora: what stands in a row, and the page as it is generated."""

from pathlib import Path
from typing import Any

import numpy as np

from bench.any_corpus import RESULTS, Corpora, read_corpora, verdict
from bench.any_corpus_page import (
    LOST_WHERE,
    MODULE,
    PAGE,
    UNLIKE,
    causes,
    foretold,
    table,
    written,
    written_of_causes,
    written_of_kinds,
)
from bench.page_tables import with_table
from slimtower.common.files import read_json

ROOT = Path(__file__).parents[2]
ASKED = Corpora.model_validate(
    {
        "students": ["static", "2l"],
        "bars": {},
        "seeds": [1],
        "corpora": {
            "a": {"title": "A corpus", "source": ["a"]},
            "b": {"title": "Another", "source": ["b"]},
            "c": {"title": "A third", "source": ["c"]},
        },
    }
)


def line(retention: float, sd: float | None = None, p: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"retention": {"test": {"mean": retention, "sd": sd}}, "training_seconds": 100 * retention}
    return row if p is None else row | {"against": {"p": p}}


def test_the_page_has_the_table_that_is_generated() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    for marker, text in ((MODULE, written()), (UNLIKE, written_of_kinds()), (LOST_WHERE, written_of_causes())):
        assert with_table(page, marker, text, PAGE) == page, "run `python -m bench.any_corpus_page`"


def label(**corpora: dict[str, Any]) -> dict[str, Any]:
    return {"corpora": {name: {"students": students} for name, students in corpora.items()}}


def test_of_many_comparisons_one_that_chance_may_have_made_has_no_star() -> None:
    rows = table(ASKED, label(a={"static": line(0.98, p=0.03), "2l": line(0.99, p=0.3)}), label()).splitlines()
    assert rows[2] == "| A corpus | 98.0 % |  | 99.0 % |  |", "0.03 of two comparisons is 0.06"


def test_what_was_foretold_is_judged_beside_saying_that_all_is_kept() -> None:
    retentions = [0.5, 0.8, 0.9, 1.0]
    forecasts = [0.6, 0.7, 0.9, 0.9]
    pairs = enumerate(zip(retentions, forecasts, strict=True))
    rows = {
        str(at): {"static": line(retention) | {"expected_retention": forecast}} for at, (retention, forecast) in pairs
    }
    [row] = foretold({"short": label(**rows, other={"2l": line(0.1)})}).splitlines()[2:]
    off, baseline_error = (
        100 * np.sqrt(np.mean((np.array(values) - retentions) ** 2)) for values in (forecasts, np.ones(4))
    )
    correlation = np.corrcoef(forecasts, retentions)[0, 1]
    assert row == f"| short | 4 | 50 to 100 % | {off:.1f} points | {baseline_error:.1f} | {correlation:.2f} |"


def test_a_change_is_shown_where_each_data_set_has_figures_dev_and_test_alike() -> None:
    corpora = ASKED.model_copy(
        update={"corpora": {"choosing": ASKED.corpora["a"].model_copy(update={"source": ["x", "y"]})}}
    )
    dev = {"values": [0.8, 1.0], "mean": 0.9, "by_set": {"x": 0.7, "y": 1.1}}
    test = {"values": [0.6, 0.8], "mean": 0.7, "by_set": {"x": 0.5, "y": 0.9}}
    alone = {"retention": {split: {"values": [share], "mean": share} for split, share in (("dev", 0.8), ("test", 1.0))}}
    labels = {
        "causes": label(choosing={"static": {"retention": {"dev": dev, "test": test}}}, x={"static": alone}),
    }
    rows = causes(corpora, labels).splitlines()[2:]
    assert rows == ["| `static` | as it is | 80.0 % ± 14.1 | 60.0 % | 100.0 % |"]
    labels["causes"]["corpora"]["y"] = {"students": {"static": alone}}
    rows = causes(corpora, labels).splitlines()[2:]
    assert rows[1] == "| `static` | a student for each | 90.0 % | 90.0 % | 90.0 % |"


def test_the_recorded_figures_reach_every_bar_on_all_disguises() -> None:
    corpora, result = read_corpora(), read_json(ROOT / RESULTS / "after.json")
    names = [name for name, corpus in corpora.corpora.items() if corpus.half == "disguises"]
    for student, bars in corpora.bars["disguises"].items():
        row = result["summary"]["disguises"][student]
        assert verdict(row, bars) == row["verdict"] == "OK" and row["corpora"] == len(names)
        assert all(result["corpora"][name]["students"][student]["seeds"] == corpora.seeds for name in names)
