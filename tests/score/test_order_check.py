"""A scoring teacher is compared with the index's teacher on queries whose answers are known."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel
from stages import SCORE, run_score
from towers import write_other_teacher

from slimtower.common.files import read_json
from steps.core.positives import positive_rows
from steps.core.tables import SCHEMAS, read_table, table_from_rows, write_table
from steps.score.run import OrderCheck, Orders


def ndcg(ranks: list[int], answers: int) -> float:
    """Of answers at these ranks, from 0 on, by its definition."""
    gain = sum(1 / math.log2(rank + 2) for rank in ranks if rank < 10)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(answers, 10)))


def lists(queries: int, at: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Twelve documents each; the one at place `at` answers, and so does one that is in no list."""
    nearest = np.arange(queries * 12).reshape(queries, 12)
    return nearest, {position: np.array([nearest[position, at], 10**6]) for position in range(queries)}


def test_both_orders_have_their_ndcg_and_what_no_answer_is_near_counts_for_none() -> None:
    nearest, answers = lists(40, at=3)
    answers[39] = np.array([10**6])
    check = OrderCheck(nearest, answers)
    scores = np.random.default_rng(5).normal(size=nearest.shape).astype(np.float32)
    for start in (0, 16, 32):
        check.add(start, scores[start : start + 16])
    orders = check.orders()
    assert orders is not None and orders.queries == 39
    ranks = [int((row > row[3]).sum()) for row in scores[:39].astype(np.float64)]
    of_teacher, of_index = np.array([ndcg([rank], 2) for rank in ranks]), np.full(39, ndcg([3], 2))
    assert orders.teacher == pytest.approx(of_teacher.mean()) and orders.index == pytest.approx(of_index.mean())
    assert orders.p_better == pytest.approx(ttest_rel(of_teacher, of_index, alternative="greater").pvalue)
    assert orders.p_worse == pytest.approx(ttest_rel(of_teacher, of_index, alternative="less").pvalue)


@pytest.mark.parametrize(("at", "warned"), [(0, True), (11, False), (4, False)])
def test_a_worse_order_is_warned_of_and_of_too_little_nothing_is_said(at: int, warned: bool) -> None:
    def orders(queries: int, documents: int) -> Orders | None:
        nearest, answers = lists(queries, at)
        check = OrderCheck(nearest[:, :documents], answers)
        check.add(0, np.random.default_rng(1).normal(size=(queries, documents)).astype(np.float32))
        return check.orders()

    figures = orders(60, 12)
    assert figures is not None and figures.describe("late").startswith("WARNING: ") == warned
    assert figures.describe("late").endswith("which may be chance") == (at == 4)
    assert orders(19, 12) is orders(60, 1) is None


@pytest.mark.medium
def test_the_stage_reads_its_own_scores_and_known_answers(
    embedded: Path, tiny_tower: Path, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(embedded / "data", tmp_path / "data")
    write_other_teacher(tiny_tower, tmp_path / "models/teach/other", seed=2)
    output = run_score(tmp_path, "other", SCORE)
    figures, line = read_json(output / "report.json")["orders"], capsys.readouterr().err
    texts = read_table(tmp_path / "data/embed", "alignment_texts")
    positives = positive_rows(tmp_path / "data/ingest", tmp_path / "data/mine/relevance", texts)
    by_text: dict[int, list[tuple[float, int]]] = {}
    for row in read_table(output, "scores").to_pylist():
        by_text.setdefault(row["text_row"], []).append((row["score"], row["doc_row"]))
    pairs = []
    for text, answers in positives.items():
        hits = [document for _, document in by_text[text]]
        there = [position for position, document in enumerate(hits) if document in answers]
        if there:
            ranks = [sum(score > by_text[text][position][0] for score, _ in by_text[text]) for position in there]
            pairs.append((ndcg(there, len(answers)), ndcg(ranks, len(answers))))
    index, teacher = np.array(pairs).T
    assert figures["queries"] == len(pairs) >= 20
    assert (figures["index"], figures["teacher"]) == pytest.approx((index.mean(), teacher.mean()))
    assert f"{figures['teacher']:.3f} as other orders them, {figures['index']:.3f} in the order of" in line

    triplets = read_table(tmp_path / "data/mine/relevance", "triplets").to_pylist()
    write_table(tmp_path / "data/ingest", "qrels", SCHEMAS["qrels"].empty_table())
    for source, reported in (("click_one_hop", True), ("click_multi_hop", False), ("relevance_one_hop", False)):
        rows = table_from_rows("triplets", [row | {"source": source} for row in triplets])
        write_table(tmp_path / "data/mine/relevance", "triplets", rows)
        orders = read_json(run_score(tmp_path, "other", SCORE) / "report.json")["orders"]
        assert (orders is not None) == reported, "neither inferred nor a ranker's"
