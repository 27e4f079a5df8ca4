"""A release that carries a BM25 index answers with fused hits; whether it does is decided on dev."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stages import RELEASE, run_release

from slimtower.common.errors import UserError
from slimtower.lexical.bm25 import Bm25
from slimtower.lexical.fusion import fuse, pooled
from slimtower.serving.release import Release, load_release
from steps.core.corpus import corpus_template
from steps.core.judged import read_judged_sets
from steps.core.tables import read_table
from steps.release.documents import carry_lexical
from steps.retrieval.lexical import STANDARD, choose, trials

pytestmark = pytest.mark.medium

QUERIES = ["how to sum the axis 23", "string window 44", "unheard"]
ALONE = """
import sys, pathlib

def refuse(event, arguments):
    if event == "pickle.find_class":
        raise RuntimeError(f"unpickled {arguments}")

sys.addaudithook(refuse)
from slimtower.serving.release import load_release
release = load_release(pathlib.Path(sys.argv[1]))
print([hit.id for hit in release.query("how to sum the axis 23")])
print(*(name for name in sys.modules if name.split(".")[0] in {"torch", "transformers", "sentence_transformers"}))
"""


def engine(project: Path, dataset: str) -> Bm25:
    """BM25 over a data set in the corpus' order."""
    template = corpus_template(project / "data/ingest")
    corpus = read_table(project / "data/ingest", "corpus").to_pylist()
    rows = [row for row in corpus if row["dataset"] == dataset]
    return Bm25([row["doc_id"] for row in rows], [template.text(row["title"], "", row["content"]) for row in rows])


def test_answers_are_the_fused_hits_of_both_searches(hybrid: Path) -> None:
    release = load_release(hybrid / "models/release/static")
    titles = {row["doc_id"]: row["title"] for row in read_table(hybrid / "data/ingest", "corpus").to_pylist()}
    for dataset in release.datasets:
        fusion = release.fusion(dataset)
        assert fusion is not None
        scores, ids = release.search_text(dataset, QUERIES, 7, "flat")
        dense, dense_ids = release.search(dataset, release.encode(QUERIES), fusion.depth, "flat")
        words, word_ids = engine(hybrid, dataset).search(QUERIES, fusion.depth)
        for at in range(len(QUERIES)):
            lists = [(dense[at][: len(dense_ids[at])], dense_ids[at]), (words[at], word_ids[at])]
            expected, expected_ids = fuse(pooled(lists, fusion.depth), fusion, 7)
            assert ids[at] == expected_ids
            np.testing.assert_allclose(scores[at], expected, atol=1e-6)
        hits = release.query_all(QUERIES, 7, dataset)
        assert [hit.title for row in hits for hit in row] == [titles[hit.id] for row in hits for hit in row]
        served, served_ids = release.search_text(dataset, QUERIES, 7)
        assert [[hit.id for hit in row] for row in hits] == served_ids
        assert [[hit.score for hit in row] for row in hits] == [row.tolist() for row in served]
    assert release.hits("one", release.encode(QUERIES), 3) != release.query_all(QUERIES, 3, "one"), "those are dense"


def test_whether_fusion_wins_is_told_over_the_index_that_serves(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = load_release(Path(shutil.copytree(hybrid / "models/release/static", tmp_path / "static")))
    judged = read_judged_sets(hybrid / "data/ingest", ["dev"])
    searched: list[str] = []
    exact = Release.search

    def search(self: Release, dataset: str, vectors: np.ndarray, k: int, kind: str = "ann") -> Any:
        searched.append(kind)
        return exact(self, dataset, vectors, k, kind)

    monkeypatch.setattr(Release, "search", search)
    vectors = release.encode([text for judged_set in judged for text in judged_set.texts])
    carry_lexical(release, hybrid / "data/ingest", judged, vectors, "auto")
    assert set(searched) == {"ann"}


def test_the_fusion_is_the_best_on_dev_and_the_standard_one_without(hybrid: Path) -> None:
    release = load_release(hybrid / "models/release/static")
    (dev,) = read_judged_sets(hybrid / "data/ingest", ["dev"])
    dense, ids = release.search("two", release.encode(dev.texts), 300, "flat")
    choice = choose(trials(dev.qrels, dev.query_ids, (list(dense), ids), engine(hybrid, "two").search(dev.texts, 300)))
    assert (release.fusion("one"), release.fusion("two")) == (STANDARD, choice.fusion)
    report = json.loads((release.folder / "report.json").read_text())["lexical"]
    assert report["one"] == {"carried": True, "fusion": STANDARD.model_dump(), "dev": None}
    assert report["two"]["dev"]["p_value"] == pytest.approx(choice.p_value)
    assert report["two"]["dev"]["fused"] == pytest.approx(choice.fused)


@pytest.mark.slow
def test_auto_carries_what_wins_on_dev_and_nothing_else(
    unreleased: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = RELEASE.model_copy(update={"lexical": "auto"})
    for gain, carried in ((0.4, True), (0.0, False)):
        better = lambda *args, gain=gain: np.vstack([np.full((1, 8), 0.5), np.full((20, 8), 0.5 + gain)])  # noqa: E731
        monkeypatch.setattr("steps.retrieval.lexical.trials", better)
        folder = run_release(unreleased, "static", auto)
        manifest, output = json.loads((folder / "manifest.json").read_text()), capsys.readouterr().out
        assert (folder / "lexical/two").is_dir() is carried and not (folder / "lexical/one").exists()
        assert list(manifest.get("lexical", {"fusions": {}})["fusions"]) == ["two"] * carried
        release = load_release(folder)
        assert (release.fusion("two") is not None) is carried and release.fusion("one") is None
        assert release.query_all(["sum"], 3, "one") == release.hits("one", release.encode(["sum"]), 3)
        verdict = (
            "carries BM25: fused hits are better beyond chance" if carried else "carries no BM25: fused hits are not"
        )
        assert f"release@static: two: {verdict}" in output


@pytest.mark.slow
def test_a_release_with_bm25_loads_without_torch_or_pickle_and_is_the_same_in_any_process(
    hybrid: Path, unreleased: Path
) -> None:
    folder = hybrid / "models/release/static"
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", ALONE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    ids, loaded = done.stdout.splitlines()
    assert ids == str([hit.id for hit in load_release(folder).query("how to sum the axis 23")])
    assert loaded == ""
    again = run_release(unreleased, "static", RELEASE.model_copy(update={"lexical": "always"}))
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert sum(path.parts[0] == "lexical" for path in files) == 2 * 5
    for name in files:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_an_index_of_other_documents_is_refused(hybrid: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(hybrid / "models/release/static", tmp_path / "release"))
    release = load_release(copy)
    Bm25(["a", "b"], ["one text", "another text"]).save(copy / "lexical/one")
    release._lexical.clear()
    with pytest.raises(UserError, match=r"lexical/one: of 2 documents, the index has 32; .*dvc repro"):
        release.lexical("one")
