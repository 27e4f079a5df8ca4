"""The benchmark of engines on a tiny project, with the one that needs no server and no file of its own."""

from pathlib import Path

import pytest
from engines import PARAMS
from promote_project import copy_project

from bench import engines
from slimtower.common.files import read_json
from slimtower.serving.release import load_release
from steps.encoders.towers import load_tower

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def project(released: Path, tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("qdrant_client")
    folder = copy_project(released, tmp_path)
    (folder / "params.yaml").write_text("teach: {index: dense}\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(engines, "CLIENTS", {"qdrant_local": "qdrant-client"})
    monkeypatch.setattr(engines, "load_section", lambda *_: PARAMS)
    monkeypatch.setattr(engines, "load_tower", lambda _: load_tower(tiny_tower))
    monkeypatch.setattr("sys.argv", ["engines", "5"])
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "abc")
    return folder


def test_quality_through_an_engine_stands_beside_that_of_the_release(project: Path) -> None:
    engines.main()
    result = read_json(engines.RESULT)
    assert result["git_commit"] == "abc" and result["queries"] == 5 and result["machine"]["cores"]
    systems = result["engines"]["qdrant_local"]["systems"]
    assert set(systems) == {"static", "2l", "teacher", "search alone"}
    for name in ("static", "2l"):
        assert set(systems[name]) == {
            "ef", "recall_at_10", "test_queries", "ndcg_exact", "ndcg_engine", "p50_ms", "p99_ms",
        }  # fmt: skip
        assert 0 < systems[name]["ndcg_exact"] <= 1 and systems[name]["test_queries"] > 1
        assert systems[name]["ndcg_engine"] == pytest.approx(systems[name]["ndcg_exact"], abs=0.005)


def test_of_a_release_with_bm25_the_fused_answers_are_compared_too(hybrid: Path) -> None:
    release = load_release(hybrid / "models/release/static")
    fusion = release.fusion("one")
    assert fusion
    texts = ["how to sum the axis", "mean of the matrix"]
    vectors = release.encode(texts)
    dense = release.hits("one", vectors, fusion.depth, "flat")
    expected = release.answers("one", texts, vectors, engines.K, "flat")
    fused = engines.fused(release, "one", fusion, texts, dense)
    assert [[hit.id for hit in row] for row in fused] == [[hit.id for hit in row] for row in expected]
    rows = {"a": {"fused_ndcg_exact": 0.5, "fused_ndcg_engine": 0.49, "ndcg_exact": 0.5, "ndcg_engine": 0.5}}
    rows |= {"b": {"ndcg_exact": 0.5, "ndcg_engine": 0.4951}, "c": {"ndcg_exact": 0.5, "ndcg_engine": 0.4949}}
    complaints = engines.worse({"one": {"systems": rows | {"search alone": {"p50_ms": 1.0}}}})
    assert complaints == ["a, fused, in one loses 1.00 points", "c in one loses 0.51 points"], "more than half a point"
