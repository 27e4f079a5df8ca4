"""A release opens only when encoder, index and manifest are the ones that were made together."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from stages import distill_params, run_distill, run_embed, run_release

from steps.core.errors import UserError
from steps.core.release import load_release
from steps.core.tables import read_table


@pytest.fixture(scope="module")
def root(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
        run_embed(folder, tiny_tower)
    for student in ("static", "2l"):
        run_distill(folder, student, distill_params())
        run_release(folder, student)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "models/release/2l", tmp_path / "release"))


def test_search_finds_what_a_plain_inner_product_finds(root: Path) -> None:
    release = load_release(root / "models/release/2l")
    vectors = release.encode(["how to sum the axis", "string window"])
    corpus = read_table(root / "data/ingest", "corpus").to_pylist()
    documents = np.load(root / "data/embed/documents.npy")
    for dataset in ("one", "two"):
        rows = [row for row, document in enumerate(corpus) if document["dataset"] == dataset]
        scores = vectors.astype(np.float64) @ documents[rows].T.astype(np.float64)
        found_scores, found = release.search(dataset, vectors, 5)
        for query in range(2):
            best = np.argsort(-scores[query], kind="stable")[:5]
            np.testing.assert_allclose(found_scores[query], scores[query][best], atol=1e-5)
            assert set(found[query]) <= {corpus[row]["doc_id"] for row in rows}


def test_every_data_set_has_both_indexes_of_all_its_vectors(root: Path) -> None:
    for dataset in ("one", "two"):
        for kind in ("flat", "ivfpq"):
            index = faiss.read_index(str(root / "models/release/2l/index" / dataset / f"{kind}.faiss"))
            assert index.ntotal == 32
    assert load_release(root / "models/release/static").datasets == ["one", "two"]


def edit_manifest(change: Callable[[dict], None], name: str = "manifest.json") -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return edit


def append(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        with (folder / name).open("ab") as handle:
            handle.write(b" ")

    return edit


def other_tokenizer(folder: Path) -> None:
    path = folder / "query_encoder/tokenizer.json"
    value = json.loads(path.read_text())
    vocabulary = value["model"]["vocab"]
    vocabulary["sum"], vocabulary["mean"] = vocabulary["mean"], vocabulary["sum"]
    path.write_text(json.dumps(value))


MUTATIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "tokenizer": (other_tokenizer, "its tokenizer are not the ones"),
    "weights": (append("query_encoder/model.safetensors"), "its weights are not the ones"),
    "pooling": (append("query_encoder/1_Pooling/config.json"), "its modules are not the ones"),
    "index bytes": (append("index/one/flat.faiss"), "not the file this release was made with"),
    "document ids": (append("index/two/doc_ids.parquet"), "not the file this release was made with"),
    "missing index": (lambda folder: (folder / "index/one/ivfpq.faiss").unlink(), "missing or not the file"),
    "format": (edit_manifest(lambda m: m.update(format=99)), "format is 99"),
    "unknown field": (edit_manifest(lambda m: m.update(surprise=1)), "surprise"),
    "missing field": (edit_manifest(lambda m: m.pop("width")), "width"),
    "no probes": (edit_manifest(lambda m: m.pop("probes")), "probes"),
    "teacher": (edit_manifest(lambda m: m["teacher"].update(weights="0" * 64)), "another teacher"),
    "width": (edit_manifest(lambda m: m.update(width=31)), "width of the index is 32"),
    "metric": (edit_manifest(lambda m: m.update(metric="l2")), "metric of the index"),
    "probe vector": (edit_manifest(lambda m: m["probes"][0]["vector"].__setitem__(0, 9.0)), "off by"),
    "probe not a number": (
        edit_manifest(lambda m: m["probes"][0]["vector"].__setitem__(0, float("nan"))),
        "off by nan",
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_changed_release_is_refused_and_says_what_to_do(copy: Path, name: str) -> None:
    change, message = MUTATIONS[name]
    load_release(copy)
    change(copy)
    with pytest.raises(UserError, match=message) as caught:
        load_release(copy)
    assert "dvc repro" in str(caught.value)


def test_an_index_from_another_teacher_cannot_be_released(root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    report = other / "models/distill/2l/report.json"
    value = json.loads(report.read_text())
    value["teacher"]["weights"] = "0" * 64
    report.write_text(json.dumps(value))
    with pytest.raises(UserError, match="distilled from another teacher"):
        run_release(other, "2l")


def test_the_same_input_gives_the_same_index_bytes(root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    run_release(other, "2l")
    for name in ("index/one/ivfpq.faiss", "index/manifest.json", "manifest.json"):
        assert (other / "models/release/2l" / name).read_bytes() == (root / "models/release/2l" / name).read_bytes()
