"""Relaxed recall, AUC over judged pairs and thresholds against cases by hand and scikit-learn's own."""

import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import folders_of, params, write_inputs
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score

from slimtower.common.errors import UserError
from steps.core.judged import JudgedSet
from steps.core.tables import read_table, table_from_rows, write_table
from steps.evaluate import insight
from steps.evaluate.figures import effort
from steps.evaluate.figures.base import EvaluatedTower
from steps.evaluate.figures.perturbed import perturbed_set
from steps.evaluate.figures.proposition import judged_pairs
from steps.evaluate.judging import audit_leaks, own_document_lines, read_evaluation_sets, unmeasured_lines
from steps.evaluate.params import REL, SAT
from steps.evaluate.scoring import answering_documents, auc, holds, pooled_auc, score_and_keep, score_answers, tokens
from steps.retrieval.lexical import trials


@pytest.mark.parametrize(
    ("answer", "text", "is_held"),
    [
        ("New York", "in new  YORK, today", True),
        ("York City", "New York. City", False),  # the full stop is a token
        ("3.5", "costs 3.5 million", True),
        ("cat", "a category", False),
        ("Zoë", unicodedata.normalize("NFC", "and zoë left"), True),
        ("Zoe", "and Zoë left", False),  # marks stay
        ("U.S.", "the U.S. army", True),
        ("longer than the text", "the text", False),
    ],
)
def test_answers_are_compared_as_dpr_compares_them(answer: str, text: str, is_held: bool) -> None:
    assert holds(tokens(text), tokens(answer)) == is_held


def test_answer_at_k_by_hand() -> None:
    answering = {"q1": ["a", "c"], "q2": []}
    values = score_answers(
        ["Answer@1", "Answer@2"],
        answering,
        ["q1", "q2", "q3"],
        [["b", "a"], ["a", "b"], ["a", "b"]],
        [np.array([2.0, 1.0])] * 3,
    )
    np.testing.assert_array_equal(values["Answer@1"], [0, 0, np.nan])
    np.testing.assert_array_equal(values["Answer@2"], [1, 0, np.nan])


def evaluation_sets(root: Path, **changes: object) -> list[JudgedSet]:
    return read_evaluation_sets(root / "ingest", params(**changes))


def test_the_documents_with_an_answer_are_found_in_the_querys_own_data_set(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    rows = [
        {"query_id": "api/q0", "answers": ["Kind  NUMBER3", "of the"]},
        {"query_id": "api/q3", "answers": ["\u200b", "nowhere"]},
        {"query_id": "api/q2", "answers": ["about"]},  # of train
    ]
    write_table(tmp_path / "ingest", "answers", table_from_rows("answers", rows))
    test, _, unanswered, _ = evaluation_sets(tmp_path, measures=["Answer@5"])
    assert test.answering == {"api/q0": ["api/d3"], "api/q3": []} and unanswered.answering == {}
    assert evaluation_sets(tmp_path)[0].answering == {}, "nobody asked"
    assert answering_documents(tmp_path / "ingest", []) == {}
    search: Any = lambda dataset, texts, k: ([np.ones(1)] * len(texts), [["api/d3"]] * len(texts))  # noqa: E731
    scored, _ = score_and_keep("m", search, test, 5, ["nDCG@10", "Answer@5"])
    assert scored.means()["Answer@5"] == 0.5, "of the queries with answers"
    assert set(score_and_keep("m", search, unanswered, 5, ["nDCG@10", "Answer@5"])[0].means()) == {"nDCG@10"}


def test_auc_is_scikit_learns_with_ties_and_what_is_not_found() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, relevant = random.integers(0, 6, 50).astype(float), random.random(50) < 0.3
        assert auc(scores, relevant) == pytest.approx(roc_auc_score(relevant, scores))
    assert auc(np.array([-np.inf, 0.5, -np.inf]), np.array([True, True, False])) == pytest.approx((0.5 + 1) / 2)


def test_auc_ranks_all_judged_pairs_at_once_however_deep_their_documents_are() -> None:
    scores = {"one": np.arange(50.0)[::-1], "two": np.arange(50.0)[::-1] + 0.5}
    names = [f"d{number:02}" for number in range(50)]
    qrels = {"q1": {"d00": 2, "d40": 0, "d49": 1}, "q2": {"d01": 1, "d30": 0, "d02": 0}}
    labels = {"q1": {"d00": 0, "d40": 1}}
    judged = JudgedSet("s", "test", ["q1", "q2"], ["one", "two"], qrels, satisfaction=labels)
    depths = []

    def search(dataset: str, texts: list[str], k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        depths.append((k, len(texts)))
        return [scores[text][:k] for text in texts], [names[:k] for _ in texts]

    areas = pooled_auc([REL, SAT], search, judged, 4)
    pairs = [
        (grade >= 1, scores[{"q1": "one", "q2": "two"}[q]][int(d[1:])])
        for q, row in qrels.items()
        for d, grade in row.items()
    ]
    assert areas == {REL: pytest.approx(roc_auc_score(*zip(*pairs, strict=True))), SAT: 0.0}
    assert depths == [(4, 2), (40, 2), (400, 1)]
    assert pooled_auc(["nDCG@10"], search, judged, 4) == {}
    more = replace(judged, without_relevant={"q3": ("one", {"d05": 0})}, satisfaction=labels | {"q3": {"d05": 1}})
    pairs.append((False, scores["one"][5]))
    assert pooled_auc([REL, SAT], search, more, 400) == {
        REL: pytest.approx(roc_auc_score(*zip(*pairs, strict=True))), SAT: 0.0
    }  # fmt: skip
    alone = JudgedSet("s", "test", ["q1"], ["one"], {"q1": {"d00": 1}})
    assert pooled_auc([REL, SAT], search, alone, 4) == {}, "no pair of the other kind"


def test_a_threshold_of_a_data_set_counts_from_there_on(tmp_path: Path) -> None:
    write_inputs(tmp_path, ("api",))
    test, _ = evaluation_sets(tmp_path, min_relevance={"api": 2}, measures=["R@5", "R(rel=1)@5"])
    by_id = {query: f"api/d{query.removeprefix('api/q')}" for query in test.query_ids}
    search: Any = lambda dataset, texts, k: ([np.ones(1)] * len(texts), [[by_id[q]] for q in test.query_ids])  # noqa: E731
    means = score_and_keep("m", search, test, 5, ["R@5", "R(rel=1)@5", "nDCG@10"])[0].means()
    assert means == {"R@5": 0.0, "R(rel=1)@5": 1.0, "nDCG@10": 1.0}
    with pytest.raises(UserError, match=r"min_relevance names 'gone'; the judged data sets are api"):
        evaluation_sets(tmp_path, min_relevance={"gone": 2})


def test_a_hit_of_the_querys_own_id_is_dropped_where_it_is_asked_for() -> None:
    hits: Any = lambda dataset, texts, k: ([np.array([3.0, 2.0, 1.0])[:k]], [["s/1", "s/2", "s/3"][:k]])  # noqa: E731
    identical = {"query_ids": ["s/1"], "texts": ["x"], "qrels": {"s/1": {"s/2": 1}}}
    for ignored, expected in ((False, 0.0), (True, 1.0)):
        judged = JudgedSet("s", "test", **identical, ignore_identical_ids=ignored)  # type: ignore[arg-type]
        scored, (_, docs) = score_and_keep("m", hits, judged, 2, ["P@1"])
        assert (scored.means()["P@1"], len(docs[0])) == (expected, 2)


def test_the_own_id_counts_nowhere_else_either() -> None:
    """Its own document is each query's first hit, the relevant one its second."""
    ids = [f"s/{row}" for row in range(12)]
    vectors = np.eye(12, dtype=np.float32)
    vectors[np.arange(12), (np.arange(12) + 1) % 12] = 0.5

    def search(
        dataset: str, query_vectors: np.ndarray, k: int, kind: str, threads: int = 0
    ) -> tuple[np.ndarray, list[list[str]]]:
        order = np.argsort(-query_vectors, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(query_vectors, order, 1), [[ids[row] for row in line] for line in order.tolist()]

    release: Any = SimpleNamespace(search=search)
    qrels = {query: {ids[(row + 1) % 12]: 1} for row, query in enumerate(ids)}
    judged = JudgedSet("s", "test", ids, ids, qrels, ignore_identical_ids=True)
    assert effort._ndcg(release, judged, vectors, "flat") == 1
    changed = perturbed_set(judged, np.arange(3), "typos", 1)
    assert changed.ignore_identical_ids and list(changed.qrels) == ids[:3]
    tower: Any = SimpleNamespace(release=release)
    nearest = EvaluatedTower(tower, judged, vectors, 1).teacher_hits
    assert all(len(docs) == 10 and query not in docs for query, docs in zip(ids, nearest, strict=True))
    pairs = judged_pairs(judged, [[query, ids[(row + 2) % 12]] for row, query in enumerate(ids)])
    assert pairs[1][:2] == ["s/1", "s/2"] and len(pairs[1]) == 24
    hits = (
        list(-np.sort(-vectors, axis=1)[:, :2]),
        [[query, ids[(at + 1) % 12]] for at, query in enumerate(ids)],
    )
    alone, dropped = (trials(qrels, ids, hits, hits, ignored) for ignored in (False, True))
    assert (alone == 1 / np.log2(3)).all() and (dropped == 1).all()


def test_what_is_relevant_from_a_higher_grade_on_is_so_everywhere() -> None:
    judged = JudgedSet("s", "test", ["s/q"], ["x"], {"s/q": {"s/1": 1, "s/2": 2}}, relevant_from=2)
    assert judged_pairs(judged, [["s/3"]])[2].tolist() == [False, True, False]
    assert [hit.relevant for hit in insight.listed_hits(["s/1", "s/2", "s/3"], judged, 0, {})] == [False, True, None]


def test_queries_that_are_documents_themselves_are_told(tmp_path: Path) -> None:
    rows = [
        {"doc_id": f"arg/{n}", "dataset": "arg", "title": "A title", "topic": "", "content": f"It says, {n}."}
        for n in range(10)
    ]
    write_table(tmp_path, "corpus", table_from_rows("corpus", rows))

    def judged(texts: dict[str, str], ignored: bool = False) -> JudgedSet:
        qrels = {query: {"arg/9": 1} for query in texts}
        return JudgedSet("arg", "test", list(texts), list(texts.values()), qrels, ignore_identical_ids=ignored)

    [line] = own_document_lines(tmp_path, [judged({"arg/1": "it says 1", "arg/2": "It says, 2.", "arg/q": "It says"})])
    assert line.startswith("2 of 3 test queries of arg are documents") and "ignore_identical_ids: true" in line
    assert not own_document_lines(tmp_path, [judged({"arg/1": "it says 1"}, ignored=True)])
    assert not own_document_lines(tmp_path, [judged({"arg/1": "another text", "arg/q": "it says 2"})]), "ids by chance"


def test_a_measure_without_data_is_told() -> None:
    item = JudgedSet("d", "test", ["d/q"], ["asked"], {"d/q": {"d/1": 1}})
    settings = params(measures=["Answer@5", "Answer@20", "AUC-SAT"])
    answers, labels = unmeasured_lines([item], settings)
    assert answers.startswith("Answer@5, Answer@20: no value, as no judged query has an answer string")
    assert labels.startswith("AUC-SAT: no value, as no judged query has a second label")
    [pairs] = unmeasured_lines([item], params(measures=["R@5", "AUC-REL"]))
    assert pairs.startswith("AUC-REL: no value, as no judged query has a document judged irrelevant")
    negative = replace(item, without_relevant={"d/r": ("other", {"d/2": 0})})
    assert unmeasured_lines([negative], params(measures=["R@5", "AUC-REL"])) == []
    complete = replace(item, answering={"d/q": ["d/1"]}, satisfaction={"d/q": {"d/1": 1}})
    assert unmeasured_lines([item, complete], settings) == []


def test_measures_are_checked_and_named_as_ir_measures_names_them() -> None:
    assert params(measures=["Recall@5", "Answer@20", "AUC-REL"]).measures == ["nDCG@10", "R@5", "Answer@20", "AUC-REL"]
    assert params(measures=["nDCG@10", "AUC-SAT"]).by_query == ["nDCG@10"]
    with pytest.raises(ValidationError, match=r"'Hits@5' is no measure .*; and Answer@k, AUC-REL, AUC-SAT"):
        params(measures=["Hits@5"])
    for name in ("R@2000", "Answer@2000"):
        with pytest.raises(ValidationError, match=rf"{name} looks at more hits than the 1000"):
            params(measures=[name])


def audit(root: Path) -> dict[str, int]:
    return audit_leaks(folders_of(root))


@pytest.mark.parametrize(
    ("where", "file"), [("alignment", "alignment_texts"), ("generated", "generated_queries"), ("mined", "triplets")]
)
def test_a_planted_leak_fails_and_is_named(tmp_path: Path, where: str, file: str) -> None:
    write_inputs(tmp_path, leak=where)  # planted in capitals with a mark behind it: folding must see through
    with pytest.raises(UserError, match=rf"1 of 3 .*{file}\.parquet.*is api/q1"):
        audit(tmp_path)


def test_a_query_by_which_a_triplet_was_reached_counts_too(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    triplets = read_table(tmp_path / "mine", "triplets")
    position = triplets.column_names.index("via_query_id")
    via = triplets.set_column(position, triplets.schema.field(position), [["med/q0"]])
    write_table(tmp_path / "mine", "triplets", via)
    with pytest.raises(UserError, match="is med/q0"):
        audit(tmp_path)
