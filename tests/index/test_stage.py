"""The stage `index`: what it writes, with which queries it tunes, and what a second run repeats."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from index_vectors import clustered, exact_top, index_params
from recorder import Recorder

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file, sha256_text, write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.serving.index_files import open_index, read_index_manifest
from steps.core.tables import read_table, table_from_rows, write_table
from steps.index import dataset as one_dataset
from steps.index import run as stage
from steps.index.inputs import recall_queries

pytestmark = pytest.mark.medium

DIM = 32


class Project:
    """What the stage reads: two data sets, `one` with dev queries and `two` without."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[str]()
        for folder in ("ingest", "embed", "teach/tower"):
            (root / folder).mkdir(parents=True)
        tower = root / "teach/tower"
        (tower / "model.safetensors").write_bytes(b"weights")
        write_json(tower / "modules.json", [{"type": "a.Transformer"}, {"type": "a.Normalize"}])
        write_json(tower / "config_sentence_transformers.json", {"prompts": {"query": "q: "}})
        write_json(root / "embed/report.json", {"teacher": asdict(fingerprint(tower))})
        queries = [(f"one/q{number}", "one", "dev" if number % 2 else "train") for number in range(80)]
        queries += [("two/q0", "two", "train")]
        rows = [{"query_id": i, "dataset": d, "text": f"text of {i}", "split": s} for i, d, s in queries]
        write_table(root / "ingest", "queries", table_from_rows("queries", rows))
        texts = [{"text_sha": "", "text": f"t{n}", "part": "train_queries", "role": "query", "source_id": ""}
                 for n in range(60)]  # fmt: skip
        write_table(root / "embed", "alignment_texts", table_from_rows("alignment_texts", texts))
        np.save(root / "embed/alignment.npy", clustered(60, DIM, seed=5).astype(np.float16))
        self.documents(range(1600), clustered(1600, DIM))

    def documents(self, numbers: Sequence[int], vectors: np.ndarray) -> None:
        """Documents by number, even ones in `one`; document n has the vector of its row."""
        names = ["two" if number % 2 else "one" for number in numbers]
        rows = [
            {"doc_id": f"{name}/{number}", "dataset": name, "title": "T", "topic": "", "content": f"{vector[:2]}"}
            for name, number, vector in zip(names, numbers, vectors, strict=True)
        ]
        write_table(self.root / "ingest", "corpus", table_from_rows("corpus", rows))
        np.save(self.root / "embed/documents.npy", vectors)
        self.vectors = {row["doc_id"]: vector for row, vector in zip(rows, vectors, strict=True)}

    def encode(self, tower: str, texts: list[str], role: str) -> np.ndarray:
        assert (tower, role) == ("tower", "query")
        self.asked += texts
        return clustered(len(texts), DIM, seed=6)

    def index(self, output: str = "index", **changes: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Run the stage; returns its manifest and metrics."""
        notes, params = Recorder(), index_params(**changes)
        root = self.root
        stage.run(root / "ingest", root / "embed", root / "teach", root / output, params, notes)
        return json.loads((root / output / "manifest.json").read_text()), notes.last

    def hits(self, dataset: str, name: str, output: str = "index", dim: int = DIM) -> list[dict[str, float]]:
        """Scores by document id that 20 queries find, as a reader of the manifest sees them."""
        folder = self.root / output
        entry = json.loads((folder / "manifest.json").read_text())["datasets"][dataset]["indexes"][name]
        ids = pq.read_table(folder / dataset / "doc_ids.parquet")["doc_id"].to_pylist()
        results = open_index(folder / dataset, name, entry).search(clustered(20, dim, seed=6), 10)
        return [{ids[row]: score for score, row in zip(*line, strict=True)} for line in zip(*results, strict=True)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project_files = Project(tmp_path)
    monkeypatch.setattr(one_dataset, "SEMANTIC_LEVELS", 2)
    monkeypatch.setattr(one_dataset, "SEMANTIC_CODES", 16)
    monkeypatch.setattr(stage, "load_tower", lambda folder: Path(folder).name)
    monkeypatch.setattr(stage, "encode", project_files.encode)
    return project_files


def test_what_is_written_and_what_the_manifest_says(project: Project) -> None:
    manifest, metrics = project.index(target_recall=0.9)
    assert manifest["format"] == 4 and manifest["dim"] == DIM and manifest["metric"] == "inner_product"
    assert manifest["normalised"] and manifest["prompts"] == {"query": "q: "}
    assert manifest["document"] == "{title}. {content}"
    for dataset, entry in manifest["datasets"].items():
        folder = project.root / "index" / dataset
        digests = {f"{name}.faiss": index["sha256"] for name, index in entry["indexes"].items()} | entry["files"]
        assert digests == {path.name: sha256_file(path) for path in folder.iterdir()}
        assert entry["vectors"] == 800
        ann = entry["indexes"]["ann"]
        assert ann["kind"] == "ivfpq" and ann["factory"] == "OPQ8_32,IVF20,PQ8x4fs,Refine(SQ8)"
        assert ann["bytes"] == (folder / "ann.faiss").stat().st_size
        assert set(ann["settings"]) == {"nprobe", "k_factor_rf"}
        assert entry["measured"]["ann_recall_at_10"] >= 0.9 and entry["measured"]["target_met"]
        assert metrics[f"{dataset}.ann_recall_at_10"] == entry["measured"]["ann_recall_at_10"]
        errors = entry["measured"]["semantic_ids"]["relative_error"]
        assert 1 > errors[0] > errors[1] > 0
        codes = pq.read_table(folder / "semantic_ids.parquet")
        assert codes.column_names == ["doc_id", "level_1", "level_2"] and str(codes["level_1"].type) == "int16"
        ids = [doc_id for doc_id in project.vectors if doc_id.startswith(dataset)]
        matrix = np.array([project.vectors[doc_id] for doc_id in ids])
        exact = [[ids[row] for row in line] for line in exact_top(matrix, clustered(20, DIM, seed=6))]
        assert [list(hits) for hits in project.hits(dataset, "flat")] == exact
    first = pq.read_table(project.root / "index/one/doc_ids.parquet").to_pylist()[0]
    content = f"{project.vectors['one/0'][:2]}"
    assert first == {"doc_id": "one/0", "text_sha": sha256_text(f"T. {content}")}
    assert read_index_manifest(project.root / "index") == manifest
    write_json(project.root / "index/manifest.json", manifest | {"format": 3})
    with pytest.raises(UserError, match=r"index/manifest.json: format of the index is 3"):
        read_index_manifest(project.root / "index")


def test_dev_queries_are_asked_and_alignment_queries_where_there_are_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.index.run.RECALL_QUERIES", 30)
    manifest, _ = project.index()
    first, second = (manifest["datasets"][name]["measured"] for name in ("one", "two"))
    assert (first["recall_queries_from"], first["recall_queries"]) == ("dev", 30)
    assert (second["recall_queries_from"], second["recall_queries"]) == ("alignment", 30)
    assert len(project.asked) == 30 and all(int(text.rpartition("q")[2]) % 2 for text in project.asked)


def test_a_data_set_without_dev_queries_asks_what_is_its_own_or_nobodys(project: Project) -> None:
    sources = [
        ("train_queries", "one/q0"), ("train_queries", "two/q0"), ("unlabelled_queries", "file/7"),
        ("titles", "one/2"), ("titles", "two/1"), ("spans", "two/1"), ("train_queries", "one/q2"),
    ]  # fmt: skip
    vectors = np.load(project.root / "embed/alignment.npy")[: len(sources)]

    def recall_rows(dataset: str, left_out: set[str]) -> list[int]:
        rows = [row for row, (_, source) in enumerate(sources) if source not in left_out]
        texts = [
            {"text_sha": "", "text": f"t{row}", "part": sources[row][0], "role": "query", "source_id": sources[row][1]}
            for row in rows
        ]
        write_table(project.root / "embed", "alignment_texts", table_from_rows("alignment_texts", texts))
        np.save(project.root / "embed/alignment.npy", vectors[rows])
        queries = read_table(project.root / "ingest", "queries")
        recall_set = recall_queries(
            queries, dataset, project.root / "embed", lambda texts: clustered(len(texts), DIM, seed=6), 10, 0
        )
        assert recall_set.source == "alignment"
        return [
            int(np.flatnonzero((vectors == row).all(axis=1))[0]) for row in recall_set.vectors.astype(vectors.dtype)
        ]

    assert recall_rows("two", set()) == [1]
    assert recall_rows("two", {"two/q0"}) == [2]
    assert recall_rows("two", {"two/q0", "file/7"}) == [4, 5]
    assert recall_rows("three", {"file/7"}) == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["ivfpq", "hnsw"])
def test_an_incremental_run_finds_what_a_rebuild_finds(
    kind: str, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    knobs: dict[str, Any] = {"kind": kind, "target_recall": 1.0}
    project.index(**knobs)
    vectors = clustered(1600, DIM)
    vectors[200:220] = clustered(20, DIM, seed=11)  # changed documents
    numbers = [*range(40, 1600), *range(5000, 5060)]  # 40 are gone, 60 new
    project.documents(numbers, np.concatenate([vectors[40:], clustered(60, DIM, seed=12)]))
    _, metrics = project.index("again", **knobs)
    assert {key: metrics[f"one.update.{key}"] for key in ("added", "removed", "trained")} == {
        "added": 40, "removed": 30, "trained": 0}  # fmt: skip
    assert metrics["one.update.drift"] == 40 / 800 and metrics["one.update.scanned_queries"] < 40
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "empty"))
    _, metrics = project.index("anew", **knobs)
    assert metrics["one.update.trained"] == 1
    for dataset in ("one", "two"):
        assert project.hits(dataset, "flat", "again") == project.hits(dataset, "flat", "anew")
        pairs = zip(*(project.hits(dataset, "ann", run) for run in ("again", "anew")), strict=True)
        assert np.mean([len(set(ours) & set(theirs)) / 10 for ours, theirs in pairs]) > 0.95


def test_too_many_changes_train_anew(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.index()
    project.documents(range(1600), clustered(1600, DIM, seed=20))
    assert project.index()[1]["one.update.trained"] == 1
    project.documents(range(1400), clustered(1600, DIM, seed=20)[:1400])
    monkeypatch.setattr("steps.index.dataset.RETRAIN_AFTER", 0.1)
    anew = project.index()[1]
    assert (anew["one.update.trained"], anew["one.update.tuned"], anew["one.update.drift"]) == (1, 1, 0)


def test_a_run_of_the_past_neither_takes_up_nor_leaves_a_state(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.index()
    monkeypatch.setenv("SLIMTOWER_BACKFILL", "1")
    project.documents(range(1590), clustered(1590, DIM, seed=20))
    assert project.index("past")[1]["one.update.trained"] == 1
    monkeypatch.delenv("SLIMTOWER_BACKFILL")
    project.documents(range(1600), clustered(1600, DIM))
    assert project.index("again")[1]["one.update.drift"] == 0


def test_nothing_is_searched_for_twice(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.index(target_recall=0.7)
    manifest, metrics = project.index(target_recall=1.0)
    assert (metrics["one.update.trained"], metrics["one.update.tuned"]) == (0, 1), "for another target"
    assert manifest["datasets"]["one"]["measured"]["ann_recall_at_10"] > 0.99
    with monkeypatch.context() as patch:
        for name in ("codebooks", "exact_top", "tune", "trained"):
            patch.setattr(one_dataset, name, lambda *args, name=name: pytest.fail(f"{name} ran again"))
        again, metrics = project.index(target_recall=1.0)
    assert again == manifest
    assert {key: metrics[f"one.update.{key}"] for key in ("added", "scanned_queries", "trained", "tuned")} == {
        "added": 0, "scanned_queries": 0, "trained": 0, "tuned": 0}  # fmt: skip
    monkeypatch.setenv("SLIMTOWER_CACHE", str(project.root / "empty"))
    assert project.index(target_recall=1.0)[0] == manifest, "the same bytes without a state"


@pytest.mark.parametrize("name", ["documents.parquet", "ann.faiss"])
def test_a_state_cut_by_a_power_failure_is_replaced(
    name: str, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    first = project.index()[0]
    (cut,) = (tmp_path / "cache/index/one").glob(f"*/{name}")
    cut.write_bytes(cut.read_bytes()[:99])
    manifest, metrics = project.index("again")
    assert manifest == first and metrics["one.update.trained"] == metrics["one.update.tuned"] == 1
    assert capsys.readouterr().err.count("the index is built anew") == 1
    manifest, metrics = project.index("third")
    assert manifest == first and metrics["one.update.trained"] == 0


def test_a_smaller_dim_and_a_single_document_are_indexed(project: Project) -> None:
    manifest, _ = project.index(dim=16, kind="flat")
    assert manifest["dim"] == 16 and list(manifest["datasets"]["one"]["indexes"]) == ["flat"]
    hits = project.hits("one", "flat", dim=16)
    first = np.array([project.vectors[doc_id][:16] for doc_id in hits[0]], dtype=np.float64)
    expected = first @ clustered(20, 16, seed=6)[0] / np.linalg.norm(first, axis=1)
    np.testing.assert_allclose(list(hits[0].values()), expected, atol=1e-6)
    project.documents([0], clustered(1, DIM))
    [entry] = project.index()[0]["datasets"].values()
    assert entry["indexes"]["ann"]["factory"] == "Flat" and entry["measured"]["ann_recall_at_10"] == 1


@pytest.mark.parametrize("kind", ["ivfflat", "hnsw"])
def test_shards_are_listed_and_found(kind: str, project: Project) -> None:
    unsharded = project.index(kind=kind, target_recall=1.0)[0]
    exact = project.hits("one", "flat")
    manifest, _ = project.index(kind=kind, target_recall=1.0, shard_vectors=300)
    indexes = manifest["datasets"]["one"]["indexes"]
    assert list(indexes["flat"]["shards"]) == ["flat.0000.faiss", "flat.0001.faiss", "flat.0002.faiss"]
    assert ("shards" in indexes["ann"]) == (kind == "hnsw")
    assert project.hits("one", "flat") == exact
    assert manifest["datasets"]["one"]["corpus_digest"] == unsharded["datasets"]["one"]["corpus_digest"]


def test_mistakes_are_told(project: Project) -> None:
    with pytest.raises(UserError, match=r"index.dim is 33, but the teacher's vectors have 32 dimensions"):
        project.index(dim=33)
    project.documents(range(10), clustered(10, DIM))
    np.save(project.root / "embed/documents.npy", clustered(9, DIM))
    with pytest.raises(UserError, match=r"9 vectors for 10 documents; run `dvc repro embed`"):
        project.index()
    np.save(project.root / "embed/documents.npy", clustered(10, DIM))
    (project.root / "teach/tower/model.safetensors").write_bytes(b"other weights")
    with pytest.raises(UserError, match="embedded by another teacher"):
        project.index()
