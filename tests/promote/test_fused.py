"""A release that fuses with BM25 is judged, measured anew and smoke-tested as it serves."""

import math
from pathlib import Path
from typing import Any

import pytest
from evaluate_fakes import params as evaluate_params
from promote_fakes import policy
from promote_project import INGEST, RELEASES, REPORTS, copy_project, write_evaluation

from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, read_json, sha256_file, write_json
from slimtower.serving.release import load_release
from steps.core.judged import read_judged_sets
from steps.evaluate.cache import measure_all
from steps.evaluate.measuring import Task
from steps.evaluate.systems import Lexical, Student, Systems, Teacher, bm25_search
from steps.promote.evidence import choose_students, read_candidate, read_evaluation, read_test_sets
from steps.promote.fresh_process import SUM_TOLERANCE, TOLERANCE, differences, golden_hits, rescore

pytestmark = pytest.mark.medium


@pytest.fixture
def project(hybrid: Path, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = copy_project(hybrid, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def with_fused(p50_ms: dict[str, float]) -> None:
    """An evaluation of `static` alone, at 0.5, and fused, at 0.6, with latencies by data set."""
    write_evaluation({"static": 0.5, "static+bm25": 0.6})
    metrics = read_json(REPORTS / "metrics.json")
    metrics["retention"].pop("static+bm25")
    metrics["latency"].pop("static+bm25")
    metrics["fused"] = {dataset: {"static": {"p50_ms": value}} for dataset, value in p50_ms.items()}
    write_json(REPORTS / "metrics.json", metrics)


def test_the_evidence_is_that_of_what_serves(project: Path) -> None:
    with_fused({"one": 2.0, "two": 3.0})
    evaluation = read_evaluation(INGEST, read_test_sets(INGEST), [])
    evidence = read_candidate("static", REPORTS, RELEASES, evaluation).evidence
    assert {value for values in evidence.values.values() for value in values.values()} == {0.6}
    assert {name: set(values) for name, values in evidence.values.items()} == evaluation.queries
    assert evidence.p50_ms == 3.0
    release = RELEASES / "static"
    assert evidence.index_bytes == folder_bytes(release / "index") + folder_bytes(release / "lexical")
    assert choose_students("", REPORTS, RELEASES, policy(max_p50_ms=3.0))[0] == "static"
    with pytest.raises(UserError, match=r"max_p50_ms 2\.9"):
        choose_students("", REPORTS, RELEASES, policy(max_p50_ms=2.9))
    for two, p50_ms in (({"two": {}}, math.inf), ({}, 2.0)):  # of what nobody judged nothing is timed
        with_fused({"one": 2.0})
        metrics: Any = read_json(REPORTS / "metrics.json")
        metrics["fused"] |= two
        write_json(REPORTS / "metrics.json", metrics)
        assert read_candidate("static", REPORTS, RELEASES, evaluation).evidence.p50_ms == p50_ms


def test_a_release_that_fuses_is_evaluated_so_even_unasked_and_measured_anew_alike(project: Path) -> None:
    release = load_release(RELEASES / "static")
    judged = read_judged_sets(INGEST, ["test"])
    systems = Systems(
        Lexical(sha256_file(INGEST / "corpus.parquet"), bm25_search(INGEST)),
        Teacher("teacher", release, release.encode, 1),
        [Student("static", release.manifest.checksum, release, release.encode)],
    )
    measurements = measure_all(systems, Task(judged, [], evaluate_params(fused=False)))
    assert set(measurements.results) == {"bm25", "teacher", "static", "static+bm25"}
    fused = measurements.results["static+bm25"]
    assert {name: figures["carried"] for name, figures in fused.fusions.items()} == {"one": True, "two": True}
    for dataset, figures in fused.fusions.items():
        carried = release.fusion(dataset)
        assert carried is not None and figures["fusion"] == carried.model_dump()
    evaluation = read_evaluation(INGEST, read_test_sets(INGEST), [])
    values = {
        item.judged.dataset: dict(zip(item.judged.query_ids, item.values["nDCG@10"].tolist(), strict=True))
        for item in fused.of_split("test")
    }
    assert rescore(RELEASES / "static", evaluation, read_test_sets(INGEST), 1.0).values == values


def test_golden_hits_are_fused_and_normalised_sums_may_differ_more(project: Path) -> None:
    golden = golden_hits(RELEASES / "static", 5)
    release = load_release(RELEASES / "static")
    for query in golden:
        assert query["doc_ids"] == [hit.id for hit in release.query(query["text"], 5, query["dataset"])]
    allowed = {query["dataset"]: query["tolerance"] for query in golden}
    kinds = {dataset: release.fusion(dataset) for dataset in ("one", "two")}
    assert allowed == {
        name: SUM_TOLERANCE if fusion and fusion.kind == "weighted_sum" else TOLERANCE for name, fusion in kinds.items()
    }
    first = {**golden[0], "tolerance": 0.01}
    near = {"doc_ids": first["doc_ids"], "scores": [score + 0.008 for score in first["scores"]]}
    assert differences([first], [near]) == []  # type: ignore[list-item]
    assert len(differences([{**first, "tolerance": 0.005}], [near])) == 1  # type: ignore[list-item]
