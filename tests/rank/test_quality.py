"""How good a ranker is: AUC, nDCG before and after, and which queries they are of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_fakes import PARAMS, candidates, queries, write_rank_world
from teach_fakes import table

import steps.rank.quality as quality
from steps.core.errors import UserError
from steps.core.tables import write_table
from steps.rank.quality import DevQuery, auc, mean_auc, measure


def test_auc_is_the_share_of_pairs_in_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        relevant, others = random.integers(0, 6, size=random.integers(1, 9)), random.integers(0, 6, size=7)
        wins = sum((a > b) + 0.5 * (a == b) for a in relevant for b in others)
        assert auc(relevant, others) == pytest.approx(wins / (len(relevant) * len(others)), abs=1e-12)


def test_relevant_documents_are_held_against_judged_ones_or_else_against_unjudged_ones() -> None:
    judged = DevQuery("a", "", {"x": 2, "y": 0}, [], ["x", "y", "z"])
    unjudged = DevQuery("b", "", {"x": 1}, [], ["y", "z"])  # its relevant document was not found, but scored
    alone = DevQuery("c", "", {"x": 1}, [], ["x"])
    scored = [{"x": 1.0, "y": 2.0, "z": -5.0}, {"x": 1.0, "y": 0.0, "z": 2.0}, {"x": 1.0}]
    found = mean_auc([judged, unjudged, alone], scored)
    assert found == {"mean": pytest.approx((0.0 + 0.5) / 2), "against_judged": 1, "against_unjudged": 1}
    assert mean_auc([alone], scored[2:]) == {"mean": None, "against_judged": 0, "against_unjudged": 0}


def perfect(*_: Any, **__: Any) -> Any:
    """A ranker that knows the words of the world."""
    from rank_fakes import KNOWN

    def scores(ranker: object, pairs: Sequence[tuple[str, str]], **_: Any) -> np.ndarray:
        own = [" ".join(KNOWN[word] for word in query.split()[2:]) for query, _ in pairs]
        return np.array([float(text.startswith(f"{each}.")) for each, (_, text) in zip(own, pairs, strict=True)])

    return scores


def test_the_order_of_bm25_is_compared_with_the_rankers_of_all_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path)
    monkeypatch.setattr(quality, "pair_scores", perfect())
    params = PARAMS.model_copy(update={"base": "x"})
    found = measure(None, tmp_path / "ingest", tmp_path / "candidates", params)  # type: ignore[arg-type]
    assert found is not None
    assert found["n"] == sum(row["split"] == "dev" for row in queries())
    assert found["searcher"] == "bm25"
    assert found["ndcg_candidates"] == pytest.approx(1 / np.log2(6))  # at the fifth rank
    assert found["ndcg_reranked"] == 1.0
    assert found["auc"]["mean"] == 1.0 and found["auc"]["against_judged"] == 0
    shallow = params.model_copy(update={"depth": 3})
    found = measure(None, tmp_path / "ingest", tmp_path / "candidates", shallow)  # type: ignore[arg-type]
    assert found is not None
    assert found["ndcg_candidates"] == 0.0 and found["ndcg_reranked"] == 1.0  # `dense` has it at the third rank
    (tmp_path / "candidates/bm25/candidates.parquet").unlink()
    found = measure(None, tmp_path / "ingest", tmp_path / "candidates", params)  # type: ignore[arg-type]
    assert found is not None and found["searcher"] == "dense"
    assert found["ndcg_candidates"] == pytest.approx(1 / np.log2(4))


def test_only_so_many_dev_queries_are_asked_and_always_the_same(tmp_path: Path) -> None:
    write_rank_world(tmp_path)
    params = PARAMS.model_copy(update={"dev_queries": 3})
    ingest, found = tmp_path / "ingest", tmp_path / "candidates"
    drawn = [quality.dev_queries(ingest, found, "bm25", params) for _ in range(2)]
    splits = {row["query_id"]: row["split"] for row in queries()}
    assert len(drawn[0]) == 3 and drawn[0] == drawn[1]
    assert {splits[query.query_id] for query in drawn[0]} == {"dev"}
    none = PARAMS.model_copy(update={"dev_queries": 0})
    assert measure(None, ingest, found, none) is None  # type: ignore[arg-type]


def test_a_candidate_that_the_corpus_lacks_is_named(tmp_path: Path) -> None:
    write_rank_world(tmp_path)
    rows = [*candidates("bm25"), {"query_id": "d/q0", "doc_id": "d/gone", "rank": 2, "score": 0.0}]
    write_table(tmp_path / "candidates/bm25", "candidates", table("candidates", rows))
    with pytest.raises(UserError, match=r"candidates: document 'd/gone' is not in .* run ingest and candidates again"):
        measure(None, tmp_path / "ingest", tmp_path / "candidates", PARAMS)  # type: ignore[arg-type]
