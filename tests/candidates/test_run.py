"""The stage as a whole: who is asked, what each searcher finds, and that no test query takes part."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import write_rows
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Router
from towers import write_static

import steps.candidates.run as selection
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.candidates.params import CandidatesParams
from steps.candidates.run import run
from steps.core.tables import read_table, table_from_rows, write_table
from steps.encoders.towers import encode, load_tower
from steps.tracking.runs import NullRun

PARAMS = CandidatesParams(
    searchers=["bm25"],
    queries="judged",
    max_queries=0,
    depth=3,
    base="all-MiniLM-L6-v2",
    batch_size=4,
    precision="fp32",
)
WORDS = ["sum", "mean", "matrix", "string", "axis", "file"]


@pytest.fixture
def ingest(tmp_path: Path) -> Path:
    """Two data sets of six documents; a query a word, every third dev or test, every second judged."""
    queries, qrels = [], []
    for dataset in ("a", "b"):
        for number, word in enumerate(WORDS):
            split = ("train", "train", "dev", "train", "train", "test")[number]
            queries.append((f"{dataset}/q-{word}", dataset, f"{word} everything {dataset}", split))
            is_judged = number % 2 == 0 or split == "test"
            qrels.append((f"{dataset}/q-{word}", dataset, f"{dataset}/{word}", int(is_judged), split))
    corpus = [(f"{name}/{word}", name, word, "", f"{word} of everything") for name in ("a", "b") for word in WORDS]
    for name, rows in (("corpus", corpus), ("queries", queries), ("qrels", qrels)):
        write_rows(tmp_path / "ingest", name, rows)
    return tmp_path / "ingest"


def candidates(ingest: Path, searcher: str = "bm25", **changes: Any) -> dict[str, list[tuple[str, int, float]]]:
    """What the searcher found by query."""
    output = ingest.parent / "candidates"
    run(ingest, output, PARAMS.model_copy(update={"searchers": [searcher]} | changes), NullRun())
    by_query: dict[str, list[tuple[str, int, float]]] = {}
    for row in read_table(output / searcher, "candidates").to_pylist():
        by_query.setdefault(row["query_id"], []).append((row["doc_id"], row["rank"], row["score"]))
    return by_query


def test_judged_training_queries_and_dev_queries_search_their_own_data_set(ingest: Path) -> None:
    by_query = candidates(ingest)
    assert set(by_query) == {f"{name}/q-{word}" for name in "ab" for word in ("sum", "matrix", "axis")}
    for query_id, rows in by_query.items():
        dataset, _, word = query_id.partition("/q-")
        assert [rank for _, rank, _ in rows] == [1, 2, 3]
        assert rows[0][0] == f"{dataset}/{word}"  # alone has the word
        assert {doc_id.split("/")[0] for doc_id, *_ in rows} == {dataset}
        assert rows[0][2] > rows[1][2] >= rows[2][2] > 0
    report = read_json(ingest.parent / "candidates/report.json")
    assert report == {"queries": {"a": 3, "b": 3}, "candidates": {"bm25": 18}}
    every_training_query = set(candidates(ingest, queries="all"))
    assert every_training_query == {f"{name}/q-{word}" for name in "ab" for word in WORDS if word != "file"}


def test_a_limit_draws_training_queries_by_seed_and_keeps_dev_queries(
    ingest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = candidates(ingest, max_queries=2)  # of 4
    assert first == candidates(ingest, max_queries=2)
    assert {"a/q-matrix", "b/q-matrix"} < set(first) and len(first) == 4
    assert "max_queries" not in capsys.readouterr().err
    candidates(ingest, max_queries=1)
    assert "1 of 4 training queries (candidates.max_queries)" in capsys.readouterr().err
    draws = set()
    for seed in range(5):
        monkeypatch.setattr(selection, "_SEED", seed)
        draws.add(frozenset(candidates(ingest, max_queries=2)))
    assert len(draws) > 1


def test_many_queries_without_a_document_are_warned_of(ingest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    candidates(ingest)
    assert "WARNING" not in capsys.readouterr().err
    rows = read_table(ingest, "queries").to_pylist()
    for row in rows:
        if row["dataset"] == "a":
            row["text"] = "etwas ganz anderes"
    write_table(ingest, "queries", table_from_rows("queries", rows))
    candidates(ingest)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert "3 of 3 queries of a" in line


@pytest.mark.medium
def test_dense_candidates_are_those_of_the_whole_product_by_cosine_whatever_the_base_normalises(
    ingest: Path, tmp_path: Path
) -> None:
    base = write_static(tmp_path / "static", [*WORDS, "everything", "of"])
    by_query = candidates(ingest, "dense", base=str(base), depth=4)
    tower = load_tower(base)
    documents = encode(tower, [f"{word}. {word} of everything" for word in WORDS], "document").astype(np.float64)
    orders = set()
    for dataset, word in itertools.product("ab", ("axis", "matrix", "sum")):
        query_vector = encode(tower, [f"{word} everything {dataset}"], "query")[0].astype(np.float64)
        cosine = documents @ query_vector / np.linalg.norm(documents, axis=1) / np.linalg.norm(query_vector)
        best, rows = np.argsort(-cosine)[:4], by_query[f"{dataset}/q-{word}"]
        assert [doc_id for doc_id, *_ in rows] == [f"{dataset}/{WORDS[position]}" for position in best]
        assert [score for *_, score in rows] == pytest.approx(cosine[best].tolist(), abs=1e-5)
        orders.add((best == np.argsort(-documents @ query_vector)[:4]).all())
    assert False in orders, "long vectors come first there"
    router = Router.for_query_document([tower[0], Normalize()], [tower[0]])
    routed = SentenceTransformer(modules=[router], similarity_fn_name="cosine", device="cpu")
    routed.save_pretrained(str(tmp_path / "routed"))
    again = candidates(ingest, "dense", base=str(tmp_path / "routed"), depth=4)
    for query_id, rows in again.items():
        assert [doc_id for doc_id, *_ in rows] == [doc_id for doc_id, *_ in by_query[query_id]]
    assert again.keys() == by_query.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truncate_dim": 2}, r"candidates: base .* cuts its vectors to 2 dimensions"),
        ({"similarity_fn_name": "euclidean"}, "candidates: base .* compares by euclidean"),
    ],
)
def test_a_base_that_cuts_its_vectors_or_compares_by_distances_is_refused(
    change: dict[str, object], message: str, ingest: Path, tmp_path: Path
) -> None:
    base = write_static(tmp_path / "static", [*WORDS, "everything", "of"])
    settings = base / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | change))
    with pytest.raises(UserError, match=message):
        candidates(ingest, "dense", base=str(base))


def test_dev_queries_have_a_limit_and_need_training_queries_beside_them(
    ingest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "DEV_QUERIES", 1)
    by_query = candidates(ingest)
    assert len({name for name in by_query if name.endswith("matrix")}) == 1
    rows = [row | {"split": "dev"} for row in read_table(ingest, "queries").to_pylist()]
    write_table(ingest, "queries", table_from_rows("queries", rows))
    output = ingest.parent / "nobody"
    for searcher in ("bm25", "dense"):  # no tower is loaded: its base is none
        run(ingest, output, PARAMS.model_copy(update={"searchers": [searcher], "base": "none"}), NullRun())
        assert read_json(output / "report.json") == {"queries": {}, "candidates": {searcher: 0}}
        assert read_table(output / searcher, "candidates").num_rows == 0
