"""Which students are measured, and which judged queries are asked."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from evaluate_fakes import write_inputs

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.fingerprints import Fingerprint
from slimtower.lexical.bm25 import Bm25
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.tables import read_table, table_from_rows, write_table
from steps.evaluate import systems
from steps.evaluate.latency import measure, one_thread, sample
from steps.evaluate.scoring import score, score_and_keep
from steps.evaluate.systems import Hits, remembering
from steps.release.quality import ndcg


def test_a_release_of_another_teacher_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = {"weights": "w", "tokenizer": "t", "modules": "m"}
    monkeypatch.setattr(systems, "load_release", lambda _: SimpleNamespace(manifest=SimpleNamespace(teacher=released)))
    monkeypatch.setattr(systems, "fingerprint", lambda _: Fingerprint("w", "t", "m"))
    assert list(systems.open_releases({"2l": tmp_path}, tmp_path)) == ["2l"]
    monkeypatch.setattr(systems, "fingerprint", lambda _: Fingerprint("other", "t", "m"))
    with pytest.raises(UserError, match="another teacher"):
        systems.open_releases({"2l": tmp_path}, tmp_path)


def test_padded_scores_are_cut_to_the_hits() -> None:
    release = SimpleNamespace(search=lambda *_: (np.array([[2.0, 1.0, -9.0]]), [["a", "b"]]))
    scores, ids = systems.dense_search(lambda texts: np.zeros((1, 2)), release)("set", ["q"], 3)  # type: ignore[arg-type]
    assert scores[0].tolist() == [2.0, 1.0]
    assert ids == [["a", "b"]]


def test_queries_without_a_relevant_document_are_not_asked(tmp_path: Path) -> None:
    write_inputs(tmp_path, ("api",))
    qrels = read_table(tmp_path / "ingest", "qrels")
    rows = [row | ({"grade": 0} if row["query_id"] == "api/q0" else {}) for row in qrels.to_pylist()]
    write_table(tmp_path / "ingest", "qrels", qrels.from_pylist(rows, schema=qrels.schema))
    (test, dev) = read_judged_sets(tmp_path / "ingest", ["test", "dev"])
    assert "api/q0" not in test.query_ids
    assert test.without_relevant == {"api/q0": ("matrix please find number0 api", {"api/d0": 0})}
    assert dev.without_relevant == {}
    assert len(test.query_ids) == 9
    assert dev.split == "dev"
    assert test.query_ids == sorted(test.query_ids)


def test_bm25_is_built_of_one_data_set_at_a_time_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, built = write_inputs(tmp_path), []

    class Counted(Bm25):
        def __init__(self, doc_ids: Sequence[str], texts: Sequence[str]) -> None:
            built.append(list(doc_ids))
            super().__init__(doc_ids, texts)

    monkeypatch.setattr("steps.retrieval.lexical.Bm25", Counted)
    search = systems.bm25_search(tmp_path / "ingest")
    assert built == []
    for dataset in ("med", "api", "med"):
        scores, ids = search(dataset, ["number7 river"], 5)
        engine = Bm25(list(documents[dataset]), list(documents[dataset].values()))
        expected = engine.search(["number7 river"], 5)
        assert ids == expected[1] and (scores[0] == expected[0][0]).all()
    assert built == [list(documents["med"]), list(documents["api"])]


def test_bm25_finds_a_word_of_the_topic_where_the_template_has_it(tmp_path: Path) -> None:
    write_inputs(tmp_path, ("api",))
    ingest = tmp_path / "ingest"
    rows = [
        row | {"topic": "zebras" if at == 4 else ""} for at, row in enumerate(read_table(ingest, "corpus").to_pylist())
    ]
    for template, expected in (("{title}. {content}", []), ("{title} {topic} {content}", [rows[4]["doc_id"]])):
        write_table(ingest, "corpus", table_from_rows("corpus", rows), metadata=DocumentTemplate(template).metadata)
        assert systems.bm25_search(ingest)("api", ["zebras"], 5)[1] == [expected]


def test_ties_at_the_tenth_hit_count_over_an_exact_index_alone() -> None:
    """trec_eval puts equal scores in the order of ids, from the last one; the relevant one is behind the cut."""
    judged = JudgedSet("one", "test", ["q"], [""], {"q": {"t99": 1}})
    docs = [f"t{number}" for number in range(10, 100)]

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        return [np.ones(min(k, len(docs)))], [docs[:k]]

    assert score("m", search, judged, 10).values["nDCG@10"].tolist() == [0.0]
    assert score("m", search, judged, 10, exact=True).values["nDCG@10"].tolist() == [1.0]
    assert score("m", search, judged, 1000).values["nDCG@10"].tolist() == [1.0], "as deep measures have it"

    class Indexes:
        """Those of a release."""

        def __init__(self, *kinds: str) -> None:
            self.held = kinds

        def kinds(self, dataset: str) -> list[str]:
            return list(self.held)

        def search(self, dataset: str, vectors: np.ndarray, k: int, kind: str) -> Hits:
            return search(dataset, [], k)

    both = ("ann", "flat")
    for kinds, kind, expected in ((("flat",), "ann", 1.0), (both, "ann", 0.0), (both, "flat", 1.0)):
        [values] = ndcg(Indexes(*kinds), [judged], np.ones((1, 2)), kind)  # type: ignore[arg-type]
        assert values.tolist() == [expected], (kinds, kind)


def test_the_best_hits_of_every_query_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.evaluate.scoring._CHUNK", 2)
    ids = [f"d{row}" for row in range(30)]
    values = np.linspace(1, 0, 30)
    judged = JudgedSet("api", "test", ["q0", "q1", "q2"], ["x"] * 3, {f"q{row}": {"d0": 1} for row in range(3)})
    _, (scores, doc_ids) = score_and_keep(
        "m", lambda dataset, texts, k: ([values] * len(texts), [ids] * len(texts)), judged, 30, ["nDCG@10"]
    )
    assert doc_ids == [ids[:10]] * 3
    assert [row.tolist() for row in scores] == [values[:10].tolist()] * 3
    assert all(row.base is None for row in scores), "no view of all hits"


def test_a_text_is_read_once() -> None:
    texts_read: list[str] = []

    def encode(texts: list[str]) -> np.ndarray:
        texts_read.extend(texts)
        return np.array([[float(len(text)), 1.0] for text in texts])

    embed = remembering(encode)
    assert embed(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert embed(["bb", "ccc"]).tolist() == [[2, 1], [3, 1]]
    assert texts_read == ["a", "bb", "ccc"]


class Sleeper:
    """Takes a fixed time a call and notes who was called with how many texts."""

    def __init__(self, name: str, seconds: float, calls: list[tuple[str, int]]) -> None:
        self.name, self.seconds, self.calls = name, seconds, calls

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.calls.append((self.name, len(texts)))
        time.sleep(self.seconds)
        return np.zeros((len(texts), 4), dtype=np.float32)


def test_latency_and_throughput_of_known_encoders() -> None:
    calls: list[tuple[str, int]] = []
    encoders = {"slow": Sleeper("slow", 0.004, calls), "quick": Sleeper("quick", 0.001, calls)}
    result = measure(encoders, ["a"] * 12, ["b"] * 10, batch_size=4, wall=True)
    assert 4 <= result["slow"].p50_ms <= result["slow"].p99_ms
    assert 1 <= result["quick"].p50_ms < result["slow"].p50_ms
    assert 0 < result["slow"].qps <= 10 / (3 * 0.004)
    # 5 untimed and 12 timed queries one by one, then three passes of 10 texts in batches of 4
    assert [size for name, size in calls if name == "slow"] == [1] * (5 + 12) + [4, 4, 2] * 3


def test_encoders_take_turns_in_blocks() -> None:
    calls: list[tuple[str, int]] = []
    measure({name: Sleeper(name, 0, calls) for name in "ab"}, ["q"] * 60, ["q"], batch_size=1)
    turns = [name for position, (name, _) in enumerate(calls) if position == 0 or calls[position - 1][0] != name]
    assert turns == ["a", "b"] * (3 + 3)  # 60 queries are three blocks; then three passes


def test_one_thread_is_restored_after_an_error(monkeypatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError), one_thread():
        assert torch.get_num_threads() == 1
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        raise RuntimeError
    assert torch.get_num_threads() == 2
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    torch.set_num_threads(before)


def test_sample_repeats_only_when_it_must() -> None:
    texts = [str(number) for number in range(10)]
    assert len(set(sample(texts, 10, seed=1))) == 10
    assert sample(texts, 4, seed=1) == sample(texts, 10, seed=1)[:4]
    assert sorted(sample(["a", "b"], 4, seed=1)) == ["a", "a", "b", "b"]
