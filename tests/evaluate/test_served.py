"""What is chosen and told is what the releases answer: fused with BM25 where they carry it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import RULE, evaluate, hybrid_systems, params

from slimtower.common.files import read_json
from steps.core.judged import JudgedSet
from steps.core.tables import read_table
from steps.evaluate import slicing
from steps.evaluate.figures import perturbed
from steps.evaluate.gains import as_served, served_ms
from steps.evaluate.insight import slice_figures
from steps.evaluate.latency import Latency
from steps.evaluate.measuring import Result
from steps.evaluate.scoring import Scored
from steps.evaluate.slicing import Slice
from steps.evaluate.summary import results_table
from steps.evaluate.verdict import like_for_like


def figures(carried: bool, p50_ms: float) -> dict[str, Any]:
    return {"carried": carried, "p50_ms": p50_ms}


def result(name: str, value: float, fusions: dict[str, dict[str, Any]] | None = None) -> Result:
    sets = [JudgedSet(dataset, "dev", ["q"], ["text"], {}) for dataset in ("a", "b")]
    scored = [Scored(judged, {"nDCG@10": np.array([value])}) for judged in sets]
    indexes = {name: {"flat": {"p50_ms": 9.0}, "ann": {"p50_ms": at}} for name, at in (("a", 1.0), ("b", 3.0))}
    best = {name: [[str(value)]] for name in ("a", "b")}
    return Result(name, scored, fusions=fusions or {}, best=best, indexes=indexes if name == "teacher" else {})


def test_values_hits_and_times_are_those_of_what_each_release_answers() -> None:
    fusions = {"a": figures(True, 8.0), "b": figures(False, 99.0)}
    results = {row.name: row for row in (result("teacher", 0.9), result("s", 0.5), result("t", 0.4))}
    results["s+bm25"] = result("s+bm25", 0.7, fusions)
    served = as_served("s", results)
    assert {name: values.tolist() for name, values in served.ndcg("dev").items()} == {"a": [0.7], "b": [0.5]}
    assert served.best == {"a": [["0.7"]], "b": [["0.5"]]} and served.name == "s"
    assert as_served("t", results) is results["t"]
    times = {name: Latency(p50, 0.0, 0.0) for name, p50 in (("teacher", 10.0), ("s", 2.0), ("t", 0.5))}
    # s: fused on a, dense on b, whose index takes 3 ms; the others on b, the slower of two
    assert served_ms(results, times, ["s", "t"]) == {"teacher": 13.0, "s": 8.0, "t": 3.5}
    results["s+bm25"] = result("s+bm25", 0.7, {name: figures(False, 8.0) for name in ("a", "b")})
    assert served_ms(results, times, ["s", "t"]) == {"teacher": 10.0, "s": 2.0, "t": 0.5}


def test_like_is_held_against_like_where_a_release_adds_bm25() -> None:
    sets = [JudgedSet(dataset, "test", [f"q{i}" for i in range(40)], [], {}) for dataset in ("a", "b")]

    def measured(name: str, value: float, fusions: dict[str, dict[str, Any]] | None = None) -> Result:
        scored = [Scored(judged, {"nDCG@10": np.full(40, value)}) for judged in sets]
        return Result(name, scored, fusions=fusions or {})

    fusions = {"a": figures(True, 8.0), "b": figures(False, 8.0)}
    rows = [measured("teacher", 0.8), measured("s", 0.6), measured("t", 0.7), measured("s+bm25", 0.9, fusions)]
    results = {row.name: row for row in rows}
    judgements = like_for_like(results, ["s", "t"], results["teacher"].ndcg("test"), RULE)
    assert list(judgements) == ["a"] and list(judgements["a"]) == ["s"] and list(judgements["a"]["s"]) == ["alone"]
    assert judgements["a"]["s"]["alone"]["change"] == pytest.approx(0.6 / 0.8 - 1)
    results["teacher+bm25"] = measured("teacher+bm25", 1.0, {name: figures(False, 8.0) for name in ("a", "b")})
    both = like_for_like(results, ["s", "t"], results["teacher"].ndcg("test"), RULE)["a"]["s"]["both"]
    assert (both["answer"], both["change"]) == ("no", pytest.approx(0.9 / 1.0 - 1))


def test_slices_of_a_data_set_on_which_a_release_does_not_fuse_have_no_fused_figures() -> None:
    values = {"teacher": {"a": np.ones(4), "b": np.ones(4)}, "s+bm25": {"a": np.ones(4) * 0.5}}
    sliced = [Slice(dataset, "half", np.array([0, 1])) for dataset in ("a", "b")]
    by_dataset = slice_figures(values, sliced, params())
    assert (
        by_dataset["a"]["half"]["ndcg"] == {"teacher": 1.0, "s+bm25": 0.5}
        and "s+bm25" not in by_dataset["b"]["half"]["ndcg"]
    )


@pytest.mark.medium
def test_the_student_that_is_best_as_served_is_chosen_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slicing, perturbed):
        monkeypatch.setattr(module, "MIN_QUERIES", 2)
    reports = evaluate(hybrid_systems(tmp_path), tmp_path)
    metrics = json.loads((reports / "metrics.json").read_text())
    dev, test = metrics["datasets_dev"], metrics["datasets"]
    for models in (*dev.values(), *test.values()):
        assert models["static"]["nDCG@10"] < models["2l"]["nDCG@10"] < models["static+bm25"]["nDCG@10"]
    choice, served = metrics["choice"], metrics["served"]
    assert (choice["student"], choice["runner_up"]) == ("static", "2l"), "its encoder alone is the worse one"
    assert choice["ndcg"] == pytest.approx(np.mean([models["static+bm25"]["nDCG@10"] for models in dev.values()]))
    slowest = max(row["static"]["p50_ms"] for row in metrics["fused"].values())
    assert choice["p50_ms"] == served["static"]["p50_ms"] >= slowest
    assert served["2l"]["p50_ms"] > metrics["latency"]["2l"]["p50_ms"], "the search is in it"
    ratios = [models["static+bm25"]["nDCG@10"] / models["teacher"]["nDCG@10"] for models in test.values()]
    assert served["static"]["mean_of_ratios"] == pytest.approx(np.mean(ratios))
    assert served["2l"]["mean_of_ratios"] == metrics["retention"]["2l"]["mean_of_ratios"]
    family = [row for models in metrics["against_teacher"].values() for row in models.items()]
    assert sorted(name for name, _ in family) == ["2l", "2l", "static", "static", "static+bm25", "static+bm25"]
    smallest = min(row["nDCG@10"]["p_value"] for _, row in family)
    assert min(row["nDCG@10"]["p_holm"] for _, row in family) == pytest.approx(min(1.0, len(family) * smallest))
    assert set(metrics["slices"]) == set(metrics["like_for_like"]) == set(test)
    for models in (row["ndcg"] for rows in metrics["slices"].values() for row in rows.values()):
        assert set(models) == {"teacher", "static", "2l", "static+bm25"}, "the encoder's own loss stays to be seen"
        assert models["static"] <= models["static+bm25"]
    for dataset, rows in metrics["perturbed"].items():
        qualities = [change["ndcg"] for change in rows.values()]
        assert all(set(models) == {"teacher", "static", "2l", "static+bm25"} for models in qualities), dataset
        assert all(set(change["unchanged"]) == set(change["ndcg"]) for change in rows.values())
        assert any(models["static+bm25"] > models["static"] for models in qualities), dataset
    assert set(metrics["perturbed"]) == set(test)
    for dataset, row in metrics["like_for_like"].items():
        change = test[dataset]["static"]["nDCG@10"] / test[dataset]["teacher"]["nDCG@10"] - 1
        assert list(row) == ["static"] and row["static"]["alone"]["change"] == pytest.approx(change)
    assert len(set(read_table(reports, "per_query")["model"].to_pylist())) == 5
    page, table = (reports / "report.html").read_text(), results_table(reports)
    assert "static with BM25" in (reports / "report.md").read_text() and "Chosen: static with BM25, " in table
    results = page.split("<h2>Results</h2>")[1].split("</table>")[0]
    for name, share in (
        ("static with BM25", np.mean(ratios)),
        ("static", metrics["retention"]["static"]["mean_of_ratios"]),
    ):
        assert f"{100 * share:.1f}\u00a0%" in results.split(f"<td>{name}<")[1].split("</tr>")[0]


@pytest.mark.medium
def test_slices_have_the_teacher_with_bm25_where_a_student_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "MIN_QUERIES", 2)
    reports = evaluate(hybrid_systems(tmp_path), tmp_path, params(fused=True))
    metrics = read_json(reports / "metrics.json")
    models = [row["ndcg"] for rows in metrics["slices"].values() for row in rows.values()]
    assert models and all(set(row) == {"teacher", "static", "2l", "static+bm25", "teacher+bm25"} for row in models)
    assert "teacher+bm25 |" not in (reports / "report.md").read_text().split("slices where")[-1].split("**")[0]
