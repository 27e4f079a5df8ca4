"""The teacher's hits in the order of another teacher: the head by its scores, the rest behind as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import RULE, fake_systems, folders_of, params, write_inputs
from late_fakes import write_late_teacher
from rank_fakes import write_encoder
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.core.judged import read_judged_sets
from steps.core.measures import NDCG
from steps.core.tables import read_table
from steps.evaluate.cache import measure_all
from steps.evaluate.measuring import Task, measure_other
from steps.evaluate.other_teachers import open_reranked, reordered
from steps.evaluate.params import SPLITS
from steps.evaluate.run import evaluate
from steps.evaluate.systems import Systems, dense_search
from steps.retrieval.rankers import load_ranker
from steps.scorers import cross_encoder, late_interaction, open_reranker
from steps.tracking.runs import NullRun

DEPTH = 6


def test_a_head_is_reordered_and_the_rest_stays_behind_it() -> None:
    scores, doc_ids = reordered([["a", "b", "c", "d", "e"], ["f"]], [np.array([1.0, 3.0, 3.0]), np.array([-2.0])])
    assert doc_ids == [["b", "c", "a", "d", "e"], ["f"]]
    assert scores[0].tolist() == [3, 3, 1, 0, -1] and scores[1].tolist() == [-2]


@pytest.mark.medium
def test_scores_that_are_no_numbers_rank_nothing(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, broken, teacher in (
        (cross_encoder, "pair_scores", "cross"),
        (late_interaction, "max_similarities", "late"),
    ):
        monkeypatch.setattr(module, broken, lambda *_, **__: np.array([1.0, np.nan], dtype=np.float32))
        scorer = open_reranker(world / "teachers" / teacher, world / "scratch", "fp32", 4)
        with pytest.raises(UserError, match="the score nan; train that teacher again"):
            scorer.scores(["one"], [np.array([0, 1])], lambda rows: [f"text {row}" for row in rows])


@pytest.fixture
def world(tmp_path: Path, tiny_tower: Path) -> Path:
    write_inputs(tmp_path)
    write_late_teacher(tmp_path / "teachers/late", tiny_tower)
    ranker = load_ranker(write_encoder(tmp_path / "model"), 24, seed=5)
    ranker.save_pretrained(str(tmp_path / "teachers/cross/tower"), create_model_card=False)
    write_json(tmp_path / "teachers/cross/report.json", {"kind": "cross_encoder"})
    dual_encoder = SentenceTransformer(
        str(tiny_tower), device="cpu", prompts={"query": "matrix ", "document": "violin "}
    )
    dual_encoder.save_pretrained(str(tmp_path / "teachers/other/tower"), create_model_card=False)
    write_json(tmp_path / "teachers/other/report.json", {"kind": "dual_encoder"})
    return tmp_path


def opened(root: Path, *names: str, **changes: Any) -> Systems:
    documents: dict[str, dict[str, str]] = {"api": {}, "med": {}}
    for row in read_table(root / "ingest", "corpus").to_pylist():
        documents[row["dataset"]][row["doc_id"]] = f"{row['title']} {row['content']}"
    systems = fake_systems(root, documents, static=3)
    settings = params(rerankers=list(names), rerank_depth=DEPTH, **changes)
    return replace(systems, reranked=open_reranked(root / "ingest", root / "teachers", systems.teacher, settings))


@pytest.mark.medium
@pytest.mark.parametrize("name", ["late", "cross", "other"])
def test_the_order_is_the_other_teachers_own_over_the_first_hits(
    world: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.scorers.base.PIECE", 4)
    monkeypatch.setenv("SLIMTOWER_PRECISION", "fp32")  # as the library computes below
    systems = opened(world, name)
    [system] = systems.reranked
    search = system.search_in([], tmp_path / "scratch")
    rows = read_table(world / "ingest", "corpus").to_pylist()
    texts = {row["doc_id"]: DocumentTemplate().text(row["title"], "", row["content"]) for row in rows}
    folder = str(world / "teachers" / name / "tower")

    def score(query: str, document: str) -> float:
        if name == "cross":
            return float(CrossEncoder(folder, device="cpu").predict([(query, document)], activation_fn=lambda x: x)[0])
        if name == "other":
            dense = SentenceTransformer(folder, device="cpu")
            return float(dense.encode_query(query) @ dense.encode_document(document).astype(np.float16))
        plain = MultiVectorEncoder(folder, device="cpu")
        query_tokens, document_tokens = plain.encode_query(query).numpy(), plain.encode_document(document).numpy()
        return float((query_tokens.astype(np.float64) @ document_tokens.astype(np.float16).T).max(axis=1).sum())

    first = dense_search(systems.teacher.encode, systems.teacher.release)
    for queries in (["matrix please", "graph number1"], ["which matrix"]):  # the second reads documents again
        _, teacher_hits = first("api", queries, 30)
        scores, doc_ids = search("api", queries, 30)
        for query, before, after, values in zip(queries, teacher_hits, doc_ids, scores, strict=True):
            assert sorted(after[:DEPTH]) == sorted(before[:DEPTH]) and after[DEPTH:] == before[DEPTH:]
            assert (np.diff(values) <= 0).all()
            expected = [score(query, texts[doc_id]) for doc_id in after[:DEPTH]]
            np.testing.assert_allclose(values[:DEPTH], expected, atol=2e-3)


@pytest.mark.medium
def test_it_is_a_system_of_the_report_measured_once_and_again_when_it_changes(world: Path, tiny_tower: Path) -> None:
    settings = params(rerankers=["late"], rerank_depth=DEPTH)
    task = Task(read_judged_sets(world / "ingest", SPLITS), [], settings)
    systems = opened(world, "late")
    measurements = measure_all(systems, task)
    assert "late" in measurements.measured and "late" not in measurements.latencies
    assert {path.name for path in measurements.runs} >= {"api.late.run", "med.late.run"}
    assert not measure_all(opened(world, "late"), task).measured
    again = replace(systems, reranked=open_reranked(world / "ingest", world / "teachers", systems.teacher, params(
        rerankers=["late"], rerank_depth=DEPTH + 1)))  # fmt: skip
    assert measure_all(again, task).measured == ["late"]
    (folder := world / "result").mkdir()
    result = measure_other(systems.reranked[0], task, folder / "runs")
    assert [path.name for path in folder.iterdir()] == ["runs"], "no vectors are kept with the result"
    for anew, stored in zip(result.scored, measurements.results["late"].scored, strict=True):
        np.testing.assert_array_equal(anew.values[NDCG], stored.values[NDCG])

    evaluate(systems, folders_of(world), world / "reports", settings, RULE, NullRun())
    models = set(read_table(world / "reports", "per_query")["model"].to_pylist())
    assert models == {"bm25", "teacher", "static", "late"}


@pytest.mark.medium
def test_what_cannot_rerank_is_said(world: Path) -> None:
    with pytest.raises(UserError, match=r"gone/tower: not found; run `dvc repro` to train 'gone'"):
        opened(world, "gone")
    write_json(world / "teachers/late/report.json", {"kind": "endpoint"})
    with pytest.raises(UserError, match=r"kind 'endpoint' re-ranks nothing; take it off"):
        opened(world, "late").reranked[0].search_in([], world / "scratch")
