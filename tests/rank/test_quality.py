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
        relevant, negatives = random.integers(0, 6, size=random.integers(1, 9)), random.integers(0, 6, size=7)
        wins = sum((a > b) + 0.5 * (a == b) for a in relevant for b in negatives)
        assert auc(relevant, negatives) == pytest.approx(wins / (len(relevant) * len(negatives)), abs=1e-12)


def test_relevant_documents_are_held_against_judged_ones_or_else_against_unjudged_ones() -> None:
    judged = DevQuery("a", "d", "", {"x": 2, "y": 0}, [], ["x", "y", "z"])
    unjudged = DevQuery("b", "d", "", {"x": 1}, [], ["y", "z"])  # its relevant document was not found, but scored
    alone = DevQuery("c", "d", "", {"x": 1}, [], ["x"])
    scored = [{"x": 1.0, "y": 2.0, "z": -5.0}, {"x": 1.0, "y": 0.0, "z": 2.0}, {"x": 1.0}]
    area = mean_auc([judged, unjudged, alone], scored)
    assert area == {"mean": pytest.approx((0.0 + 0.5) / 2), "against_judged": 1, "against_unjudged": 1}
    assert mean_auc([alone], scored[2:]) == {"mean": None, "against_judged": 0, "against_unjudged": 0}


def measured(folder: Path, params: CrossEncoderParams, *, base_embeds: bool = False) -> dict[str, Any] | None:
    ranker: Any = None
    return measure(ranker, folder / "ingest", folder / "candidates", params, base_embeds=base_embeds)


def perfect(ranker: object, pairs: Sequence[tuple[str, str]], **_: Any) -> np.ndarray:
    """Scores of a ranker that knows the words of the world."""
    titles = [" ".join(KNOWN[word] for word in query.split()[2:]) for query, _ in pairs]
    return np.array([float(text.startswith(f"{title}.")) for title, (_, text) in zip(titles, pairs, strict=True)])


def test_the_order_of_bm25_is_compared_with_the_rankers_of_all_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path)
    monkeypatch.setattr(quality, "pair_scores", perfect)
    params = PARAMS.model_copy(update={"base": "x"})
    report = measured(tmp_path, params)
    assert report is not None
    assert report["n"] == sum(row["split"] == "dev" for row in queries())
    assert report["searcher"] == "bm25"
    assert report["ndcg_candidates"] == pytest.approx(1 / np.log2(6))  # at the fifth rank
    assert report["ndcg_reranked"] == 1.0
    assert report["auc"]["mean"] == 1.0 and report["auc"]["against_judged"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(quality, "DEPTH", 3)
        report = measured(tmp_path, params)
    assert report is not None
    assert report["ndcg_candidates"] == 0.0 and report["ndcg_reranked"] == 1.0  # `dense` has it at the third rank
    (tmp_path / "candidates/bm25/candidates.parquet").unlink()
    report = measured(tmp_path, params)
    assert report is not None and report["searcher"] == "dense"
    assert report["ndcg_candidates"] == pytest.approx(1 / np.log2(4))


TEXTS = {row["doc_id"]: DocumentTemplate().text(row["title"], "", row["content"]) for row in documents()}


def words(text: str) -> list[str]:
    return [word for word in re.findall(r"\b\w\w+\b", text.lower()) if word not in STOPWORDS_EN]


def by_formula(query: str, doc_id: str) -> float:
    """BM25 of a document in float64, as Lucene has it."""
    mean = sum(len(words(text)) for text in TEXTS.values()) / len(TEXTS)
    doc_words, score = words(TEXTS[doc_id]), 0.0
    for word in words(query):
        holding = sum(word in words(text) for text in TEXTS.values())
        idf = log(1 + (len(TEXTS) - holding + 0.5) / (holding + 0.5))
        score += idf * doc_words.count(word) / (doc_words.count(word) + 1.5 * (0.25 + 0.75 * len(doc_words) / mean))
    return score


def by_counting(
    score: Callable[[str, str], float], query_rows: list[dict[str, Any]], judged: list[dict[str, Any]]
) -> float:
    """Mean over queries of the share of pairs of a relevant and an irrelevant candidate that are in order."""
    areas = []
    for query in query_rows:
        grades = {row["doc_id"]: row["grade"] for row in judged if row["query_id"] == query["query_id"]}
        candidate_ids = {row["doc_id"] for name in ("bm25", "dense") for row in candidates(name)
                 if row["query_id"] == query["query_id"]}  # fmt: skip
        relevant = [score(query["text"], doc_id) for doc_id, grade in grades.items() if grade > 0]
        irrelevant = [score(query["text"], doc_id) for doc_id in candidate_ids if grades[doc_id] == 0]
        areas.append(np.mean([(a > b) + 0.5 * (a == b) for a in relevant for b in irrelevant]))
    return float(np.mean(areas))


@pytest.mark.medium
def test_bm25_and_the_bases_embeddings_are_measured_on_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    # words that documents have
    query_rows = [row | {"text": row["text"].replace("records", "rows")} for row in queries()]
    dev = [row for row in query_rows if row["split"] == "dev"]
    judged = [
        {"query_id": row["query_id"], "dataset": "d", "doc_id": doc_id, "grade": int(random.random() < 0.3),
         "split": "dev"}
        for row in dev for doc_id in TEXTS
    ]  # fmt: skip
    write_rank_world(tmp_path, qrels=judged, queries=query_rows)
    monkeypatch.setattr(quality, "pair_scores", lambda _, pairs, **__: np.zeros(len(pairs)))
    base = write_encoder(tmp_path / "model")
    params = PARAMS.model_copy(update={"base": str(base)})
    report = measured(tmp_path, params, base_embeds=True)
    assert report is not None and report["auc"]["mean"] == 0.5 and report["auc"]["against_judged"] == len(dev)
    bm25 = by_counting(by_formula, dev, judged)
    assert abs(bm25 - 0.5) > 0.02 and report["auc"]["bm25"] == pytest.approx(bm25, abs=1e-9)

    tower = load_tower(base)
    vectors = {text: np.float64(tower.encode(text)) for text in (*TEXTS.values(), *(row["text"] for row in dev))}

    def cosine(query: str, doc_id: str) -> float:
        query_vector, doc_vector = vectors[query], vectors[TEXTS[doc_id]]
        return float(query_vector @ doc_vector / np.linalg.norm(query_vector) / np.linalg.norm(doc_vector))

    assert report["auc"]["base"] == pytest.approx(by_counting(cosine, dev, judged), abs=1e-9)
    without = measured(tmp_path, params)
    assert without is not None and without["auc"] == report["auc"] | {"base": None}


def test_only_so_many_dev_queries_are_asked_and_always_the_same(tmp_path: Path) -> None:
    write_rank_world(tmp_path)
    params = PARAMS.model_copy(update={"dev_queries": 3})
    ingest, searched = tmp_path / "ingest", tmp_path / "candidates"
    samples = [quality.dev_queries(ingest, searched, "bm25", params) for _ in range(2)]
    splits = {row["query_id"]: row["split"] for row in queries()}
    assert len(samples[0]) == 3 and samples[0] == samples[1]
    assert {splits[query.query_id] for query in samples[0]} == {"dev"}
    assert measured(tmp_path, PARAMS.model_copy(update={"dev_queries": 0})) is None
    rows = [*candidates("bm25"), {"query_id": "d/q0", "doc_id": "d/gone", "rank": 2, "score": 0.0}]
    write_table(tmp_path / "candidates/bm25", "candidates", table("candidates", rows))
    with pytest.raises(UserError, match="'d/gone' is not in"):
        measured(tmp_path, PARAMS)
