"""How good a ranker is: AUC, nDCG before and after, and which queries they are of."""

import re
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from rank_fakes import KNOWN, PARAMS, candidates, documents, queries, write_encoder, write_rank_world
from teach_fakes import table

import steps.rank.quality as quality
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from steps.core.tables import write_table
from steps.encoders.towers import load_tower
from steps.rank.params import CrossEncoderParams
from steps.rank.quality import DevQuery, auc, mean_auc, measure


def test_auc_is_the_share_of_pairs_in_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        relevant, others = random.integers(0, 6, size=random.integers(1, 9)), random.integers(0, 6, size=7)
        wins = sum((a > b) + 0.5 * (a == b) for a in relevant for b in others)
        assert auc(relevant, others) == pytest.approx(wins / (len(relevant) * len(others)), abs=1e-12)


def test_relevant_documents_are_held_against_judged_ones_or_else_against_unjudged_ones() -> None:
    judged = DevQuery("a", "d", "", {"x": 2, "y": 0}, [], ["x", "y", "z"])
    unjudged = DevQuery("b", "d", "", {"x": 1}, [], ["y", "z"])  # its relevant document was not found, but scored
    alone = DevQuery("c", "d", "", {"x": 1}, [], ["x"])
    scored = [{"x": 1.0, "y": 2.0, "z": -5.0}, {"x": 1.0, "y": 0.0, "z": 2.0}, {"x": 1.0}]
    found = mean_auc([judged, unjudged, alone], scored)
    assert found == {"mean": pytest.approx((0.0 + 0.5) / 2), "against_judged": 1, "against_unjudged": 1}
    assert mean_auc([alone], scored[2:]) == {"mean": None, "against_judged": 0, "against_unjudged": 0}


def measured(folder: Path, params: CrossEncoderParams, *, base_embeds: bool = False) -> dict[str, Any] | None:
    ranker: Any = None
    return measure(ranker, folder / "ingest", folder / "candidates", params, base_embeds=base_embeds)


def perfect(ranker: object, pairs: Sequence[tuple[str, str]], **_: Any) -> np.ndarray:
    """Scores of a ranker that knows the words of the world."""
    own = [" ".join(KNOWN[word] for word in query.split()[2:]) for query, _ in pairs]
    return np.array([float(text.startswith(f"{each}.")) for each, (_, text) in zip(own, pairs, strict=True)])


def test_the_order_of_bm25_is_compared_with_the_rankers_of_all_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path)
    monkeypatch.setattr(quality, "pair_scores", perfect)
    params = PARAMS.model_copy(update={"base": "x"})
    found = measured(tmp_path, params)
    assert found is not None
    assert found["n"] == sum(row["split"] == "dev" for row in queries())
    assert found["searcher"] == "bm25"
    assert found["ndcg_candidates"] == pytest.approx(1 / np.log2(6))  # at the fifth rank
    assert found["ndcg_reranked"] == 1.0
    assert found["auc"]["mean"] == 1.0 and found["auc"]["against_judged"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(quality, "DEPTH", 3)
        found = measured(tmp_path, params)
    assert found is not None
    assert found["ndcg_candidates"] == 0.0 and found["ndcg_reranked"] == 1.0  # `dense` has it at the third rank
    (tmp_path / "candidates/bm25/candidates.parquet").unlink()
    found = measured(tmp_path, params)
    assert found is not None and found["searcher"] == "dense"
    assert found["ndcg_candidates"] == pytest.approx(1 / np.log2(4))


TEXTS = {row["doc_id"]: DocumentTemplate().text(row["title"], "", row["content"]) for row in documents()}


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\b\w\w+\b", text.lower()) if word not in STOPWORDS_EN]


def by_formula(query: str, doc_id: str) -> float:
    """BM25 of a document in float64, as Lucene has it."""
    mean = sum(len(words(text)) for text in TEXTS.values()) / len(TEXTS)
    own, score = words(TEXTS[doc_id]), 0.0
    for word in words(query):
        holding = sum(word in words(text) for text in TEXTS.values())
        idf = log(1 + (len(TEXTS) - holding + 0.5) / (holding + 0.5))
        score += idf * own.count(word) / (own.count(word) + 1.5 * (0.25 + 0.75 * len(own) / mean))
    return score


def by_counting(score: Callable[[str, str], float], asked: list[dict[str, Any]], judged: list[dict[str, Any]]) -> float:
    """Mean over queries of the share of pairs of a relevant and an irrelevant candidate that are in order."""
    areas = []
    for query in asked:
        grades = {row["doc_id"]: row["grade"] for row in judged if row["query_id"] == query["query_id"]}
        found = {row["doc_id"] for name in ("bm25", "dense") for row in candidates(name)
                 if row["query_id"] == query["query_id"]}  # fmt: skip
        relevant = [score(query["text"], doc_id) for doc_id, grade in grades.items() if grade > 0]
        others = [score(query["text"], doc_id) for doc_id in found if grades[doc_id] == 0]
        areas.append(np.mean([(a > b) + 0.5 * (a == b) for a in relevant for b in others]))
    return float(np.mean(areas))


@pytest.mark.medium
def test_bm25_and_the_bases_embeddings_are_measured_on_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    asked = [row | {"text": row["text"].replace("records", "rows")} for row in queries()]  # words that documents have
    dev = [row for row in asked if row["split"] == "dev"]
    judged = [
        {"query_id": row["query_id"], "dataset": "d", "doc_id": doc_id, "grade": int(random.random() < 0.3),
         "split": "dev"}
        for row in dev for doc_id in TEXTS
    ]  # fmt: skip
    write_rank_world(tmp_path, qrels=judged, queries=asked)
    monkeypatch.setattr(quality, "pair_scores", lambda _, pairs, **__: np.zeros(len(pairs)))
    base = write_encoder(tmp_path / "model")
    params = PARAMS.model_copy(update={"base": str(base)})
    found = measured(tmp_path, params, base_embeds=True)
    assert found is not None and found["auc"]["mean"] == 0.5 and found["auc"]["against_judged"] == len(dev)
    bm25 = by_counting(by_formula, dev, judged)
    assert abs(bm25 - 0.5) > 0.02 and found["auc"]["bm25"] == pytest.approx(bm25, abs=1e-9)

    tower = load_tower(base)
    vectors = {text: np.float64(tower.encode(text)) for text in (*TEXTS.values(), *(row["text"] for row in dev))}

    def cosine(query: str, doc_id: str) -> float:
        one, other = vectors[query], vectors[TEXTS[doc_id]]
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    assert found["auc"]["base"] == pytest.approx(by_counting(cosine, dev, judged), abs=1e-9)
    without = measured(tmp_path, params)
    assert without is not None and without["auc"] == found["auc"] | {"base": None}


def test_only_so_many_dev_queries_are_asked_and_always_the_same(tmp_path: Path) -> None:
    write_rank_world(tmp_path)
    params = PARAMS.model_copy(update={"dev_queries": 3})
    ingest, found = tmp_path / "ingest", tmp_path / "candidates"
    drawn = [quality.dev_queries(ingest, found, "bm25", params) for _ in range(2)]
    splits = {row["query_id"]: row["split"] for row in queries()}
    assert len(drawn[0]) == 3 and drawn[0] == drawn[1]
    assert {splits[query.query_id] for query in drawn[0]} == {"dev"}
    assert measured(tmp_path, PARAMS.model_copy(update={"dev_queries": 0})) is None
    rows = [*candidates("bm25"), {"query_id": "d/q0", "doc_id": "d/gone", "rank": 2, "score": 0.0}]
    write_table(tmp_path / "candidates/bm25", "candidates", table("candidates", rows))
    with pytest.raises(UserError, match="'d/gone' is not in"):
        measured(tmp_path, PARAMS)
