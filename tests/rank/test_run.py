"""The stage `rank` as a whole, on a tiny encoder."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_versions import install_another
from rank_fakes import (
    PARAMS,
    candidates,
    documents,
    liked,
    queries,
    run_rank,
    triplets,
    write_encoder,
    write_rank_world,
)
from recorder import Recorder, killed_at
from safetensors.torch import load_file

import steps.rank.relevance as relevance
import steps.rank.run as stage
import steps.training.ranker as training
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import read_table
from steps.retrieval.rankers import load_ranker

pytestmark = pytest.mark.medium


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "model")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder / "tower" / "model.safetensors")
    return tensors


@pytest.mark.parametrize("loss", ["bce", "softmax", "lambda"])
def test_a_trained_ranker_beats_the_order_of_bm25(
    tmp_path: Path, base: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    mined, judged = liked()
    write_rank_world(tmp_path, mined, qrels=judged)
    run = Recorder()
    output = run_rank(tmp_path, base, run, loss=loss, epochs=5.0, learning_rate=5e-3, checkpoint_steps=50)
    assert sorted(run.losses) == list(range(1, len(run.losses) + 1))
    quality = read_json(output / "report.json")["quality"]
    assert quality["ndcg_reranked"] > quality["ndcg_candidates"] and quality["p_value"] < 0.05
    area = quality["auc"]
    assert area["mean"] > 0.95 and area["against_judged"] == 5
    assert (run.last["auc"], run.last["auc_bm25"], run.last["auc_base"]) == (area["mean"], area["bm25"], area["base"])
    output_text = capsys.readouterr().err
    assert f"AUC {area['mean']:.4f} (BM25 {area['bm25']:.4f}" in output_text and "WARNING" not in output_text
    assert not list(own_cache.rglob("checkpoint-*"))  # removed after success


def test_what_is_written_is_the_rankers_and_holds_no_evaluation_query(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    query_rows = queries()
    query_rows[1]["text"] = "How to ADD records?!"  # as query 0, a dev query
    query_rows[2]["split"] = "test"
    mined = [row for row in triplets() if row["query_id"] != "d/q2"]
    write_rank_world(tmp_path, mined, queries=query_rows)
    output = run_rank(tmp_path, base)
    teach = tmp_path / "cross-teach"
    assert sorted(path.name for path in output.iterdir()) == ["relevance.parquet", "report.json", "tower"]
    assert fingerprint(output / "tower") == fingerprint(teach / "tower")
    report = read_json(teach / "report.json")
    assert report["kind"] == "cross_encoder" and report["base"] == str(base)
    assert report["fingerprint"] == fingerprint(teach / "tower").id
    assert report["positive_weight"] == report["negatives_per_positive"] > 1
    assert report["left_out"]["evaluation_query"] == 1
    assert "WARNING: the ranker does not rank better than BM25" in capsys.readouterr().err  # after so few steps

    scores = read_table(output, "relevance")
    train = {row["query_id"] for row in query_rows if row["split"] == "train"} - {"d/q1"}
    assert set(scores["query_id"].to_pylist()) == train
    named = {(row["query_id"], row["doc_id"]) for name in ("bm25", "dense") for row in candidates(name)}
    pairs = list(zip(scores["query_id"].to_pylist(), scores["doc_id"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs)) and set(pairs) == {pair for pair in named if pair[0] in train}
    texts = {row["doc_id"]: DocumentTemplate().text(row["title"], "", row["content"]) for row in documents()}
    words = {row["query_id"]: row["text"] for row in query_rows}
    ranker = load_ranker(teach / "tower")
    assert ranker.max_seq_length == PARAMS.max_length
    expected = ranker.predict(
        [(words[query_id], texts[doc_id]) for query_id, doc_id in pairs], activation_fn=torch.nn.Identity()
    )
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(scores["score"].to_numpy(), expected, atol=1e-5)
    scored = read_json(output / "report.json")["scored"]
    assert scored["queries"] == len(train) and scored["scores"] == len(pairs)
    assert scored["max"] == pytest.approx(float(expected.max()), abs=1e-5)


def test_limits_that_leave_most_of_the_data_unused_are_told_with_numbers(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank_world(tmp_path)
    run_rank(tmp_path, base, max_triplets=0, max_queries=0)
    assert "max_triplets" not in (messages := capsys.readouterr().err) and "max_queries" not in messages
    run_rank(tmp_path, base, max_triplets=6, max_queries=7)
    messages = capsys.readouterr().err
    train = sum(row["split"] == "train" for row in queries())
    assert f"6 of {len(triplets())} usable" in messages and f"7 of {train} training queries" in messages
    assert "1.0 hard negatives on average" in messages


def test_scores_of_pieces_are_those_of_the_whole_and_limits_hold(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path)
    monkeypatch.setattr(relevance, "DEPTH", 3)
    at_once = read_table(run_rank(tmp_path, base, max_queries=9), "relevance")
    assert len(set(at_once["query_id"].to_pylist())) == 9
    per_query = at_once.group_by("query_id").aggregate([("doc_id", "count")])["doc_id_count"].to_pylist()
    assert max(per_query) <= 2 * 3
    monkeypatch.setattr(relevance, "QUERIES", 4)
    pieces = read_table(run_rank(tmp_path, base, name="pieces", max_queries=9), "relevance")
    for column in ("query_id", "doc_id"):
        assert pieces[column].to_pylist() == at_once[column].to_pylist()
    np.testing.assert_allclose(pieces["score"].to_numpy(), at_once["score"].to_numpy(), atol=1e-5)


@pytest.mark.usefixtures("dropout")
@pytest.mark.slow
@pytest.mark.parametrize("loss", ["bce", pytest.param("lambda", marks=pytest.mark.nightly)])
def test_a_killed_training_continues_to_the_same_weights(
    tmp_path: Path, base: Path, own_cache: Path, loss: str
) -> None:
    write_rank_world(tmp_path)
    run_rank(tmp_path, base, name="whole", loss=loss)

    with killed_at(6, training):
        run_rank(tmp_path, base, name="killed", loss=loss)
    assert not (tmp_path / "killed").exists() and not (tmp_path / "killed-teach").exists()
    assert [path.name for path in own_cache.rglob("checkpoint-*")] == ["checkpoint-4"]
    run = Recorder()
    run_rank(tmp_path, base, run, name="killed", loss=loss)
    assert min(run.losses) == 5
    expected, resumed = (weights(tmp_path / f"{name}-teach") for name in ("whole", "killed"))
    for name, tensor in expected.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("dropout")
@pytest.mark.medium
def test_a_training_whose_checkpoint_is_damaged_begins_anew(
    tmp_path: Path, base: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank_world(tmp_path)
    with killed_at(6, training):
        run_rank(tmp_path, base)
    [checkpoint] = own_cache.rglob("checkpoint-4")
    os.truncate(checkpoint / "optimizer.pt", 100)
    run = Recorder()
    run_rank(tmp_path, base, run)
    assert min(run.losses) == 1
    assert capsys.readouterr().err.count(f"rank: {checkpoint} cannot be read") == 1


def test_a_killed_scoring_does_not_train_again_and_equal_runs_are_equal(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage, "relevance_tables", killed)
        with pytest.raises(KeyboardInterrupt):
            run_rank(tmp_path, base)
    assert not (tmp_path / "cross").exists() and not (tmp_path / "cross-teach").exists()
    run = Recorder()
    resumed = run_rank(tmp_path, base, run)
    assert run.losses == {}
    again = run_rank(tmp_path, base, name="again")
    for name in ("report.json", "relevance.parquet"):
        assert (again / name).read_bytes() == (resumed / name).read_bytes()


@pytest.mark.slow
def test_a_killed_scoring_repeats_no_shard_that_was_kept(
    tmp_path: Path, base: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path)
    monkeypatch.setattr(relevance, "SHARD", 40)
    uninterrupted = run_rank(tmp_path, base, whole_run := Recorder(), name="whole")
    shutil.rmtree(own_cache / "scores")
    scored, calls = relevance.pair_scores, 0

    def killed(*words: Any, **knobs: Any) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        return scored(*words, **knobs)

    with monkeypatch.context() as patch:
        patch.setattr(relevance, "pair_scores", killed)
        with pytest.raises(KeyboardInterrupt):
            run_rank(tmp_path, base)
    run = Recorder()
    resumed = run_rank(tmp_path, base, run)
    assert run.last["shards_computed"] == whole_run.last["shards_computed"] - 3 > 0
    install_another("transformers", monkeypatch)
    run_rank(tmp_path, base, anew := Recorder(), name="anew")
    assert anew.last["shards_computed"] == whole_run.last["shards_computed"]
    assert (resumed / "relevance.parquet").read_bytes() == (uninterrupted / "relevance.parquet").read_bytes()


def test_a_cross_encoder_scores_untrained_and_an_encoder_does_not(tmp_path: Path, base: Path) -> None:
    write_rank_world(tmp_path)
    with pytest.raises(UserError, match=r"has no head that gives a score, so it ranks nothing untrained; set epochs"):
        run_rank(tmp_path, base, epochs=0.0)
    load_ranker(base, 32, seed=9).save_pretrained(str(tmp_path / "ready"), create_model_card=False)
    write_rank_world(tmp_path, mined=[])
    run_rank(tmp_path, tmp_path / "ready", epochs=0.0)
    expected, written = load_file(tmp_path / "ready" / "model.safetensors"), weights(tmp_path / "cross-teach")
    assert all(torch.equal(tensor, written[name]) for name, tensor in expected.items())
    area = read_json(tmp_path / "cross" / "report.json")["quality"]["auc"]
    assert area["base"] is None and area["bm25"] is not None  # it embeds nothing


def test_a_head_is_drawn_by_the_seed(base: Path) -> None:
    torch.manual_seed(1)
    first_head = load_ranker(base, 32, seed=3).state_dict()
    torch.manual_seed(2)
    same_seed, other_seed = load_ranker(base, 32, seed=3).state_dict(), load_ranker(base, 32, seed=4).state_dict()
    assert all(torch.equal(tensor, same_seed[name]) for name, tensor in first_head.items())
    assert [name for name, tensor in first_head.items() if not torch.equal(tensor, other_seed[name])] == [
        "0.model.classifier.weight"
    ]


def test_without_judged_dev_queries_the_report_says_so(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rank_world(tmp_path, qrels=[])
    assert read_json(run_rank(tmp_path, base) / "report.json")["quality"] is None
    assert "no judged dev query has candidates" in capsys.readouterr().err


def test_what_stops_the_stage_leaves_nothing(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(why: str, base: Path = base, **changes: Any) -> None:
        with pytest.raises(UserError, match=why):
            run_rank(tmp_path, base, **changes)
        assert not (tmp_path / "cross").exists()

    write_rank_world(tmp_path, mined=[])
    refused("no usable triplet")
    refused("65, but .* has 64 positions", max_length=65)
    refused("cannot be loaded", tmp_path / "gone")
    write_rank_world(tmp_path)
    broken = load_ranker(base, 32)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight.fill_(float("nan"))  # type: ignore[union-attr]
    broken.save_pretrained(str(tmp_path / "broken"), create_model_card=False)
    refused("the loss is nan at step 1", tmp_path / "broken")
    with monkeypatch.context() as patch:
        patch.setattr(relevance, "pair_scores", lambda _, pairs, **__: np.full(len(pairs), np.nan))
        refused("have the score nan")
    for name in ("bm25", "dense"):
        (tmp_path / "candidates" / name / "candidates.parquet").unlink()
    refused("holds no candidates")
