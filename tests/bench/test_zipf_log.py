"""The mining benchmark's log and its pairwise baseline."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench import zipf_log
from bench.mining import pairwise
from steps.core.tables import read_table

QUERIES = 3_000
Tables = dict[str, pa.Table]


def read_tables(folder: Path) -> Tables:
    return {name: read_table(folder, name) for name in ("queries", "corpus", "impressions")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_folder: Path = tmp_path_factory.mktemp("zipf")
    zipf_log.write_log(log_folder, QUERIES, seed=1)
    return log_folder


def test_terms_follow_zipfs_law() -> None:
    """One draw of a term in ranks 2^k..2^(k+1)-1 has the same probability for every k."""
    vocabulary = 2**10 - 1
    cumulative = np.cumsum(1 / np.arange(1, vocabulary + 1))
    sets = zipf_log._term_sets(20_000, cumulative / cumulative[-1], np.random.default_rng(0))
    counts = np.bincount(sets[sets >= 0], minlength=vocabulary)
    octaves = [counts[2**k - 1 : 2 ** (k + 1) - 1].sum() for k in range(4, 10)]  # distinctness thins the head
    assert max(octaves) / min(octaves) < 1.15


@pytest.mark.medium
def test_same_seed_same_bytes_in_batches_that_never_repeat_a_query(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipf_log.write_log(tmp_path / "again", QUERIES, seed=1)
    for name in ("queries", "corpus", "impressions"):
        assert (tmp_path / "again" / f"{name}.parquet").read_bytes() == (folder / f"{name}.parquet").read_bytes()
    zipf_log.write_log(tmp_path / "other", QUERIES, seed=2)
    assert not read_tables(tmp_path / "other")["queries"].equals(read_tables(folder)["queries"])

    monkeypatch.setattr(zipf_log, "BATCH", 500)
    zipf_log.write_log(tmp_path / "small", QUERIES, seed=1)
    tables = read_tables(tmp_path / "small")
    assert len(set(tables["queries"]["text"].to_pylist())) == tables["queries"].num_rows == QUERIES
    assert tables["queries"]["query_id"].to_pylist() == [f"zipf/q{i}" for i in range(QUERIES)]
    assert tables["corpus"].equals(read_tables(folder)["corpus"])


def double_loop(scores: list[dict[int, float]], givers: list[bool], threshold: float, top: int, min_terms: int) -> list:
    """Algorithm 1 over every ordered pair."""
    pairs = []
    for q1, s1 in enumerate(scores):
        best = sorted(s1, key=lambda term: (-s1[term], term))[:top]
        for q2, s2 in enumerate(scores):
            if q1 != q2 and givers[q2] and min(len(s1), len(s2)) >= min_terms:
                pairs += [[q1, q2]] if all(s2.get(term, 0.0) > threshold for term in best) else []
    return pairs


def test_pairwise_equals_a_double_loop() -> None:
    draw = random.Random(4)
    total = 0
    for _ in range(60):
        scores = [
            {term: draw.randint(1, 6) / 10 for term in draw.sample(range(9), draw.randint(1, 8))}
            for _ in range(draw.randint(1, 40))
        ]
        givers = [draw.random() < 0.7 for _ in scores]
        terms, importances = np.full((len(scores), 8), -1), np.zeros((len(scores), 8))
        for row, query_scores in enumerate(scores):
            terms[row, : len(query_scores)] = list(query_scores)
            importances[row, : len(query_scores)] = list(query_scores.values())
        threshold, top, min_terms = draw.choice([0.1, 0.25, 0.4]), draw.randint(1, 4), draw.randint(1, 3)
        pairs = pairwise(
            terms, importances, np.array(givers), threshold=threshold, top_terms=top, min_terms=min_terms
        ).tolist()
        assert pairs == double_loop(scores, givers, threshold, top, min_terms)
        total += len(pairs)
    assert total > 1_000
