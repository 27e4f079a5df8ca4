"""What serving costs: measured on dev queries, split into its parts, and refused above the limit."""

import json
import shutil
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from ir_measures import nDCG
from scipy import stats
from stages import run_release, write_ingest

from slimtower.common.errors import UserError
from slimtower.serving.release import load_release
from steps.core.judged import read_judged_sets
from steps.core.tables import read_table, table_from_rows, write_table
from steps.evaluate.systems import student_tower
from steps.release.forms import Limits
from steps.release.parity import _training_queries, probe_texts, query_texts, sample_texts
from steps.release.quality import Cost, check_costs, cost_of, measured_loss, ndcg

pytestmark = pytest.mark.medium


def cost(limit: float = 0.01, **changed: float) -> Cost:
    """Of fifty queries whose values are 0.5 but for a little noise that is the same at each step."""
    noise = np.random.default_rng(1).normal(0, 0.01, 50)
    steps = {"model": 0.5, "exported": 0.5, "served": 0.498, "approximate": 0.4} | changed
    return cost_of(*(mean + noise - noise.mean() for mean in steps.values()), limit)


def test_the_parts_of_the_loss_add_up_to_the_whole() -> None:
    serving = cost()
    assert serving.total.share == pytest.approx(0.2)
    assert serving.steps == pytest.approx({"export": 0.0, "precision": 0.004, "index": 0.196})
    assert sum(serving.steps.values()) == pytest.approx(serving.total.share)
    nothing = np.zeros(3)
    assert cost_of(nothing, nothing, nothing, nothing, 0.01).total.share == 0


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({}, "raise index.target_recall"),
        ({"served": 0.42}, "set release.precision: auto"),
        ({"exported": 0.42, "served": 0.42}, "report the model"),
    ],
)
def test_above_the_limit_the_message_names_the_costliest_step(changes: dict[str, float], fix: str) -> None:
    with pytest.raises(UserError, match=f"on 'two' serving loses 20.00% of nDCG@10 on 50 dev queries .*{fix}"):
        check_costs({"one": cost(approximate=0.499), "two": cost(**changes)})


def test_a_loss_within_the_limit_and_a_gain_pass(capsys: pytest.CaptureFixture[str]) -> None:
    check_costs({"one": cost(0.0100001, approximate=0.495), "two": cost(approximate=0.6)})
    assert capsys.readouterr().err == ""


def test_a_loss_that_its_queries_do_not_prove_passes_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(2)
    before = random.uniform(0.3, 0.7, 600)
    after = before * (1 - 0.0114) + random.normal(0, 0.1, 600)
    after -= after.mean() - before.mean() * (1 - 0.0114)
    check_costs({"one": cost_of(before, before, after, after, 0.01)})
    warning = capsys.readouterr().err
    assert "on 'one' serving loses 1.14%" in warning and "more than 1.00% is lost is not proven (p = 0.4" in warning


def test_ndcg_of_a_release_is_that_of_its_hits(released: Path) -> None:
    release = load_release(released / "models/release/2l")
    (dev,) = read_judged_sets(released / "data/ingest", ["dev"])
    vectors = release.encode(dev.texts)
    scores, ids = release.search("two", vectors, 10, "flat")
    run = [
        ir_measures.ScoredDoc(query, doc, float(score))
        for query, docs, line in zip(dev.query_ids, ids, scores, strict=True)
        for doc, score in zip(docs, line, strict=True)
    ]
    qrels = [ir_measures.Qrel(query, doc, grade) for query, docs in dev.qrels.items() for doc, grade in docs.items()]
    expected = ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10]
    (values,) = ndcg(release, [dev], vectors, "flat")
    assert values.mean() == pytest.approx(expected, abs=1e-9)


def test_what_stands_in_for_dev_queries_is_of_the_data_set_and_no_test_query(tmp_path: Path) -> None:
    ingest = write_ingest(tmp_path)
    queries = {row["text"]: row for row in read_table(ingest, "queries").to_pylist()}
    titles = {row["title"]: row for row in read_table(ingest, "corpus").to_pylist() if row["dataset"] == "two"}
    texts = sample_texts(ingest, "two", 1000)
    from_queries, from_documents = texts[:32], texts[32:]
    assert [queries[text]["split"] for text in from_queries] == ["dev"] * 8 + ["train"] * 24
    assert all(queries[text]["dataset"] == "two" for text in from_queries)
    assert set(from_documents[:32]) == set(titles)
    assert len(from_documents) == 64  # a first sentence a document follows
    assert all(text.startswith("Computes the") for text in from_documents[32:])
    assert sample_texts(ingest, "two", 10) == texts[:10]
    split = {queries[text]["split"] for text in sample_texts(ingest, "one", 1000) if text in queries}
    assert split == {"train"}  # its other queries are test


@pytest.mark.slow
def test_a_data_set_with_few_judged_queries_is_checked_by_cosine_and_said_to_be(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Path(shutil.copytree(released, tmp_path / "project", ignore=shutil.ignore_patterns("release", "cache")))
    release = load_release(run_release(project, "2l"))
    unjudged = json.loads((release.folder / "report.json").read_text())["unjudged"]["one"]
    without_dev, few_dev = (line for line in capsys.readouterr().out.splitlines() if "only cosines check" in line)
    assert (
        "no dev query of this data set is judged" in without_dev and "one " in without_dev and "two " not in without_dev
    )
    assert "only 8 dev queries of this data set are judged" in few_dev and "two " in few_dev and "one " not in few_dev
    texts = sample_texts(project / "data/ingest", "one", 256)
    served = np.concatenate([release.encode([text]) for text in texts]).astype(np.float64)
    student = student_tower(release).encode_query(texts).astype(np.float64)
    close = (served * student).sum(axis=1) / np.linalg.norm(served, axis=1) / np.linalg.norm(student, axis=1)
    assert unjudged["texts"] == len(texts) == 88  # 24 queries that are not test, 32 titles, 32 sentences
    assert unjudged["served_cosine_mean"] == pytest.approx(close.mean(), abs=1e-6)
    assert unjudged["served_cosine_min"] == pytest.approx(close.min(), abs=1e-6)
    with pytest.raises(UserError, match=r"on 88 texts of 'one'"):
        run_release(project, "2l", limits=Limits(parity=1.0, total=1.0, cosine=1.0))


def test_texts_of_queries_are_training_queries_then_titles_and_probes_the_other_way_round(tmp_path: Path) -> None:
    ingest = write_ingest(tmp_path)
    assert all(text.startswith("how to") for text in query_texts(ingest, 8))
    assert probe_texts(ingest, 2) == ["sum of sum", "mean of sum"]
    documents = len(probe_texts(ingest, 10_000)) - (queries := len([*_training_queries(ingest)]))
    assert all(text.startswith("how to") for text in probe_texts(ingest, documents + queries)[documents:])
    rows = [row for row in read_table(ingest, "queries").to_pylist() if row["split"] != "train"]
    write_table(ingest, "queries", table_from_rows("queries", rows))
    assert query_texts(ingest, 2) == probe_texts(ingest, 2)


LIMIT = 0.005


def queries(loss: float, spread: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values before and after a change that costs `loss` in truth, with differences that vary by `spread`."""
    random = np.random.default_rng(seed)
    before = random.uniform(0.4, 1.0, count)
    return before, before * (1 - loss) + random.normal(0, spread, count)


def test_the_p_value_is_that_of_the_t_distribution() -> None:
    before, after = queries(0.0064, 0.05, 600, 1)
    loss = measured_loss(before, after, LIMIT)
    excess = [(1 - LIMIT) * b - a for b, a in zip(before.tolist(), after.tolist(), strict=True)]
    mean = sum(excess) / 600
    deviation = (sum((value - mean) ** 2 for value in excess) / 599) ** 0.5
    assert loss.p_value == pytest.approx(float(stats.t.sf(mean / (deviation / 600**0.5), 599)), rel=1e-9)
    assert loss.share == pytest.approx(1 - after.mean() / before.mean())


def test_a_true_loss_at_the_limit_is_called_proven_in_one_of_twenty_draws() -> None:
    proven = sum(measured_loss(*queries(LIMIT, 0.05, 200, seed), LIMIT).proven for seed in range(2000))
    assert 0.035 <= proven / 2000 <= 0.065


def test_a_large_loss_is_proven_and_a_little_one_over_the_line_is_not() -> None:
    assert measured_loss(*queries(0.05, 0.05, 600, 3), LIMIT).proven
    before, after = queries(0.0064, 0.05, 600, 4)
    after -= after.mean() - before.mean() * (1 - 0.0064)
    loss = measured_loss(before, after, LIMIT)
    assert not loss.within and not loss.proven
    assert "0.64% of nDCG@10 on 600 dev queries" in str(loss) and "is not proven" in str(loss)


@pytest.mark.parametrize(
    ("before", "after", "proven"),
    [
        ([0.5], [0.1], False),  # one query proves nothing
        ([0.5, 0.5], [0.1, 0.1], True),  # nothing varies, and all is lost
        ([0.5, 0.5], [0.5, 0.5], False),
        ([0.0, 0.0], [0.0, 0.0], False),
    ],
)
def test_queries_without_variance(before: list[float], after: list[float], proven: bool) -> None:
    assert measured_loss(np.array(before), np.array(after), LIMIT).proven is proven
