"""Dense systems fused with BM25: chosen on dev, measured on test, told everywhere, and nothing searched twice."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import FakeRelease, bag_of_words, evaluate, fake_systems, params, write_inputs

from slimtower.lexical.fusion import ReciprocalRank, WeightedSum, fuse, pooled
from steps.core.judged import read_judged_sets
from steps.core.tables import read_table, write_table
from steps.endpoint import module as endpoint
from steps.evaluate.cache import Measurements, measure_all
from steps.evaluate.fusing import CachedSearch, Fused, figures
from steps.evaluate.measuring import Task
from steps.evaluate.params import SPLITS
from steps.evaluate.summary import results_table
from steps.evaluate.systems import Hits, Systems, bm25_search, dense_search
from steps.retrieval.lexical import DEEPEST, STANDARD

KNOWN = {"static": 1, "2l": 4}
DENSE = ["teacher", "static", "2l"]


def run_stage(root: Path, systems: Systems, **changes: object) -> tuple[Path, dict[str, Any]]:
    reports = evaluate(systems, root, params(fused=True, **changes))
    return reports, json.loads((root / "reports/metrics.json").read_text())


@pytest.fixture
def systems(tmp_path: Path) -> Systems:
    return fake_systems(tmp_path, write_inputs(tmp_path), **KNOWN)


@pytest.mark.medium
def test_fused_systems_are_in_everything_that_is_written(
    tmp_path: Path, systems: Systems, capsys: pytest.CaptureFixture[str]
) -> None:
    reports, metrics = run_stage(tmp_path, systems)
    names = {*DENSE, *(f"{name}+bm25" for name in DENSE), "bm25"}
    for part in ("datasets", "datasets_dev"):
        assert all(set(models) == names for models in metrics[part].values())
    rows = read_table(reports, "per_query").to_pylist()
    assert {row["model"] for row in rows} == names
    assert {path.name for path in (reports / "runs").iterdir()} == {
        f"{d}.{n}.run" for d in ("api", "med") for n in names
    }
    assert not {name for name in (*metrics["retention"], *metrics["latency"]) if "+" in name}
    page, table, output = (reports / "report.html").read_text(), results_table(reports), capsys.readouterr().out
    for dataset, row in metrics["fused"].items():
        assert set(row) == set(DENSE)
        for dense, fusion in row.items():
            models = metrics["datasets"][dataset]
            for baseline, model in (("dense", dense), ("bm25", "bm25")):
                difference = models[f"{dense}+bm25"]["nDCG@10"] - models[model]["nDCG@10"]
                assert fusion[f"against_{baseline}"]["difference"] == pytest.approx(difference)
            assert fusion["dev"]["fused"] == pytest.approx(metrics["datasets_dev"][dataset][f"{dense}+bm25"]["nDCG@10"])
            parts = [fusion[f"{part}_ms"] for part in ("encode", "search", "bm25", "fusion")]
            assert fusion["p50_ms"] >= max(parts) > 0
        assert row["static"]["dev"]["wins"] and row["static"]["against_dense"]["difference"] > 0.1
        for text in (page, table, output):
            assert row["static"]["told"] in text or f"static+bm25 on {dataset}: better beyond chance" in text


def by_hand(systems: Systems, root: Path, measurements: Measurements) -> None:
    """The fused values of static on dev, searched anew at each depth."""
    result = measurements.results["static+bm25"]
    release: Any = systems.students[0].release
    for item in result.of_split("dev"):
        raw = result.fusions[item.judged.dataset]["fusion"]
        fusion = (WeightedSum if raw["kind"] == "weighted_sum" else ReciprocalRank).model_validate(dict(raw))
        both = [
            search(item.judged.dataset, item.judged.texts, fusion.depth)
            for search in (dense_search(release.encode, release), bm25_search(root / "ingest"))
        ]
        for at, (query, value) in enumerate(zip(item.judged.query_ids, item.values["nDCG@10"], strict=True)):
            pairs = [(scores[at], ids[at]) for scores, ids in both]
            _, ids = fuse(pooled(pairs, fusion.depth), fusion, 10)
            (relevant,) = item.judged.qrels[query]
            assert value == pytest.approx(1 / np.log2(2 + ids.index(relevant)) if relevant in ids else 0.0)


def task_of(root: Path, **changes: object) -> Task:
    return Task(read_judged_sets(root / "ingest", SPLITS), [], params(fused=True, **changes))


@pytest.mark.medium
def test_values_are_those_of_the_fusion_and_no_query_is_searched_twice(tmp_path: Path, systems: Systems) -> None:
    searched: list[tuple[str, str]] = []

    def counted(dataset: str, texts: list[str], k: int) -> Hits:
        if k >= DEEPEST:  # those that are timed ask for fewer
            searched.extend((dataset, text) for text in texts)
        return systems.bm25.search(dataset, texts, k)

    first = measure_all(replace(systems, bm25=replace(systems.bm25, search=counted)), task_of(tmp_path))
    assert len(searched) == len(set(searched)) == 40
    alone = fake_systems(tmp_path, write_inputs(tmp_path), **KNOWN)
    measure_all(alone, replace(task_of(tmp_path), params=params(seed=14)))
    for fused, dense in zip(systems.students, alone.students, strict=True):
        fakes: list[Any] = [fused.release, dense.release]
        assert len({release.searched.count("flat") for release in fakes}) == 1
    changed = fake_systems(tmp_path, write_inputs(tmp_path), static=1, **{"2l": 3})
    second = measure_all(changed, task_of(tmp_path))
    assert second.measured == ["2l", "2l+bm25"]
    assert second.results["static+bm25"].fusions == first.results["static+bm25"].fusions
    by_hand(systems, tmp_path, first)


@pytest.mark.medium
def test_dense_hits_of_a_fusion_are_of_the_index_that_serves(
    tmp_path: Path, systems: Systems, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = FakeRelease.search

    def poor(self: FakeRelease, dataset: str, vectors: np.ndarray, k: int, kind: str = "flat", threads: int = 0) -> Any:
        return exact(self, dataset, vectors if kind == "flat" else -vectors, k, kind)

    monkeypatch.setattr(FakeRelease, "search", poor)
    results = measure_all(systems, task_of(tmp_path)).results
    for dense in ("teacher", "static"):
        for dev in results[dense].of_split("dev"):
            choice = results[f"{dense}+bm25"].fusions[dev.judged.dataset]["dev"]
            assert choice is not None and choice["dense"] < 0.2 < dev.values["nDCG@10"].mean()


@pytest.mark.medium
def test_without_dev_queries_ranks_are_fused_and_nothing_is_claimed(tmp_path: Path, systems: Systems) -> None:
    write_inputs(tmp_path, dev=False)
    reports, metrics = run_stage(tmp_path, systems)
    for row in metrics["fused"].values():
        for fusion in row.values():
            assert fusion["fusion"] == STANDARD.model_dump() and fusion["dev"] is None
    assert "2l+bm25 on api: not compared" in results_table(reports)
    page = (reports / "report.html").read_text()
    assert "best on dev" not in page and "<i>Dev</i>" not in page
    [row] = re.findall(r"<tr[^>]*><td>static with BM25.*?</tr>", page, re.S)
    assert "×" not in row, "no time of the teacher's to hits was measured"


@pytest.mark.medium
def test_an_endpoint_is_asked_anew_while_it_is_timed(tmp_path: Path) -> None:
    anew: list[endpoint.WaitTime] = []

    def encode(texts: list[str]) -> np.ndarray:
        waited = endpoint._anew.get()
        assert waited is not None
        anew.append(waited)
        started = time.perf_counter()
        time.sleep(0.05)
        waited.seconds += time.perf_counter() - started
        return bag_of_words(texts)

    systems = fake_systems(tmp_path, write_inputs(tmp_path), encode)
    _, times = figures(Fused(systems.teacher, systems.bm25), "api", None, ["matrix", "graph"], 3, 1)
    assert len(anew) == 3 and endpoint._anew.get() is None
    assert times["encode_ms"] < 40, "limits hold back 50 ms, which is no part of it"


@pytest.mark.medium
def test_fused_scores_compare_within_a_query_and_have_no_auc(tmp_path: Path, systems: Systems) -> None:
    qrels = read_table(tmp_path / "ingest", "qrels")
    more = [row | {"doc_id": f"{row['dataset']}/d29", "grade": 0} for row in qrels.to_pylist()]
    write_table(tmp_path / "ingest", "qrels", qrels.from_pylist([*qrels.to_pylist(), *more], schema=qrels.schema))
    _, metrics = run_stage(tmp_path, systems, measures=["nDCG@10", "AUC-REL"])
    for models in metrics["datasets"].values():
        assert {name for name, values in models.items() if "AUC-REL" in values} == {*DENSE, "bm25"}


def test_a_search_that_is_kept_answers_as_it_did(tmp_path: Path) -> None:
    searched: list[list[str]] = []

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        searched.append(texts)
        ids = [f"{dataset}/{text}{number}" for text in texts for number in range(min(k, 400))]
        size = len(ids) // len(texts)
        lists = [ids[at * size : (at + 1) * size] for at in range(len(texts))]
        return [np.arange(len(ids), 0, -1, dtype=np.float32) for ids in lists], lists

    cached = CachedSearch(search)
    assert len(cached("a", ["x", "y"], 1000)[1][0]) == 400
    scores, ids = cached("a", ["y"], 3)
    assert ids == [["a/y0", "a/y1", "a/y2"]] and scores[0].tolist() == [400, 399, 398]
    assert searched == [["x", "y"]]
    assert cached("b", ["y"], 2)[1] == [["b/y0", "b/y1"]] and len(cached("b", ["y"], DEEPEST)[1][0]) == DEEPEST
    assert searched == [["x", "y"], ["y"]]
