"""A release answers queries with the encoder and the index that were made together."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import ModelCard
from stages import INDEX, RELEASE, run_index, run_release

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.serving.release import Release, load_release
from steps.core.tables import read_table, table_from_rows, write_table
from steps.evaluate.systems import student_tower
from steps.release.card import front_matter
from steps.release.documents import write_titles
from steps.release.forms import Limits
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.medium

STRICT = Limits(parity=1.0, total=1.0, cosine=1 - 1e-9)  # which no int8 form keeps


def exact(released: Path, dataset: str, vectors: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Inner products of the vectors with a data set's documents, in float64, and the documents' ids."""
    corpus = read_table(released / "data/ingest", "corpus").to_pylist()
    rows = [row for row, document in enumerate(corpus) if document["dataset"] == dataset]
    documents = np.load(released / "data/embed/documents.npy")[rows]
    return vectors.astype(np.float64) @ documents.T.astype(np.float64), [corpus[row]["doc_id"] for row in rows]


def test_search_finds_what_a_plain_inner_product_finds(released: Path) -> None:
    release = load_release(released / "models/release/2l")
    vectors = release.encode(["how to sum the axis", "string window"])
    for dataset in ("one", "two"):
        scores, ids = exact(released, dataset, vectors)
        found_scores, doc_ids = release.search(dataset, vectors, 5, "flat")
        for query in range(2):
            np.testing.assert_allclose(found_scores[query], -np.sort(-scores[query])[:5], atol=1e-5)
            exact_scores = [scores[query][ids.index(doc)] for doc in doc_ids[query]]
            np.testing.assert_allclose(exact_scores, found_scores[query], atol=1e-5)


def test_a_query_gets_ids_scores_and_titles_best_first(released: Path) -> None:
    release = load_release(released / "models/release/static")
    titles = {row["doc_id"]: row["title"] for row in read_table(released / "data/ingest", "corpus").to_pylist()}
    for dataset, expected in (("", "one"), ("two", "two")):
        hits = release.query("how to sum the axis", k=5, dataset=dataset)
        scores, ids = exact(released, expected, release.encode(["how to sum the axis"]))
        assert len(hits) == 5
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            assert hit.title == titles[hit.id]
            assert hit.score == pytest.approx(scores[0][ids.index(hit.id)], abs=1e-5)
    both = release.query_all(["matrix", "how to sum the axis"], k=5)
    assert both[1] == release.query("how to sum the axis", k=5)


def test_more_hits_than_documents_are_all_documents(released: Path) -> None:
    release = load_release(released / "models/release/static")
    vectors = release.encode(["sum"])
    assert sorted(release.search("one", vectors, 1000, "flat")[1][0]) == sorted(release.documents("one").ids)
    assert len(release.query("sum", k=1000)) <= 32


def test_the_settings_of_the_index_manifest_are_applied(released: Path) -> None:
    entries = json.loads((released / "models/index/manifest.json").read_text())["datasets"]
    index = load_release(released / "models/release/2l").index("one")
    assert faiss.extract_index_ivf(index).nprobe == entries["one"]["indexes"]["ann"]["settings"]["nprobe"]


def test_one_thread_searches_unless_told_otherwise_and_torch_keeps_its_own(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = released / "models/release/static"
    several, single = load_release(folder, threads=2), load_release(folder)
    searching: list[int] = []

    class Watched:
        ntotal = 32

        def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            searching.append(faiss.omp_get_max_threads())
            return np.zeros((len(vectors), k), np.float32), np.zeros((len(vectors), k), np.int64)

    monkeypatch.setattr(Release, "index", lambda *_: Watched())
    before = faiss.omp_get_max_threads()
    try:
        for release, threads in ((several, 2), (single, 1), (several, 2)):
            faiss.omp_set_num_threads(3)
            torch_threads = torch.get_num_threads()  # where the two share a library 3, too
            release.query("sum")
            assert searching.pop() == threads
            assert (faiss.omp_get_max_threads(), torch.get_num_threads()) == (3, torch_threads)
    finally:
        faiss.omp_set_num_threads(before)


def test_without_an_approximate_index_the_exact_one_serves(unreleased: Path) -> None:
    flat = INDEX.model_copy(update={"kind": "flat", "factory": ""})
    release = load_release(run_release(unreleased, "static", index=flat))
    assert release.kinds("one") == ["flat"]
    vectors = release.encode(["how to sum the axis"])
    assert release.search("one", vectors, 5, "ann")[1] == release.search("one", vectors, 5, "flat")[1]


@pytest.mark.slow
def test_a_narrower_index_gets_an_encoder_of_its_dim(unreleased: Path) -> None:
    narrow = INDEX.model_copy(update={"dim": 16})
    for student in ("static", "2l"):
        release = load_release(
            run_release(unreleased, student, RELEASE.model_copy(update={"precision": "fp32"}), narrow)
        )
        vectors = release.encode(["how to sum the axis"])
        cut = student_tower(release).encode_query(["how to sum the axis"])[:, :16].astype(np.float64)
        np.testing.assert_allclose(vectors, cut / np.linalg.norm(cut), atol=1e-5)
        card = (release.folder / "README.md").read_text()
        block = re.search(r"(SentenceTransformer\(.*\))", card)
        assert block
        tower = student_tower(release)  # what the card says of embeddings alone
        snippet = block[1].replace(f'"models/release/{student}/query_encoder"', f'"{release.folder}/query_encoder"')
        alone = eval(snippet.replace("your question", "how to sum the axis"), {"SentenceTransformer": type(tower)})
        np.testing.assert_allclose(alone, vectors, atol=1e-5)
        scores = release.search("one", vectors, 1)[0]
        assert -1.001 < float(scores[0, 0]) < 1.001


def test_the_encoder_that_serves_stays_close_to_the_student(released: Path) -> None:
    for student, form in (("static", "table"), ("2l", "onnx")):
        release = load_release(released / "models/release" / student)
        report = json.loads((release.folder / "report.json").read_text())
        assert (report["format"], report["precision"]) == (form, "int8")
        assert report["exported_cosine_min"] > 0.9999
        assert list(report["unjudged"]) == ["one", "two"]  # none of the one's queries are dev, eight of the other's
        assert report["dev"]["two"]["total"]["queries"] == 8
        assert report["dev"]["two"]["total"]["share"] == pytest.approx(sum(report["dev"]["two"]["steps"].values()))
        queries = ["how to sum the axis", "string window"]
        cosines = (release.encode(queries) * student_tower(release).encode_query(queries)).sum(axis=1)
        assert cosines.min() > 0.98


@pytest.mark.slow
def test_an_encoder_that_loses_too_much_serves_in_its_next_form(
    unreleased: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = RELEASE.model_copy(update={"precision": "auto"})
    for student, forms in (("static", ["int8", "fp32"]), ("2l", ["int8", "mixed", "fp32"])):
        release = load_release(run_release(unreleased, student, auto, limits=STRICT))
        report = json.loads((release.folder / "report.json").read_text())
        assert [trial["precision"] for trial in report["tried"]] == forms
        assert [bool(trial["objection"]) for trial in report["tried"]] == [True] * (len(forms) - 1) + [False]
        assert report["precision"] == release.manifest.encoder_settings.precision == "fp32"
        output = capsys.readouterr().out
        assert f"release@{student}: fp32 serves" in output and "int8 has mean cosine" in output
    assert [path.name for path in (release.folder / "serving").glob("*.onnx")] == ["encoder.onnx"]


@pytest.mark.slow
def test_auto_keeps_the_smallest_form_that_costs_little(unreleased: Path) -> None:
    for student in ("static", "2l"):
        folder = run_release(unreleased, student, RELEASE.model_copy(update={"precision": "auto"}))
        report = json.loads((folder / "report.json").read_text())
        assert report["precision"] == "int8" and len(report["tried"]) == 1


@pytest.mark.slow
def test_a_form_that_was_asked_for_is_the_only_one_tried(unreleased: Path) -> None:
    with pytest.raises(UserError, match=r"set release\.precision: auto"):
        run_release(unreleased, "2l", limits=STRICT)
    release = load_release(run_release(unreleased, "2l", RELEASE.model_copy(update={"precision": "mixed"})))
    assert (release.folder / "serving/encoder.mixed.onnx").is_file()


def test_an_index_from_another_teacher_cannot_be_released(unreleased: Path) -> None:
    report = unreleased / "models/distill/2l/report.json"
    value = json.loads(report.read_text())
    value["teacher"]["weights"] = "0" * 64
    report.write_text(json.dumps(value))
    with pytest.raises(UserError, match="distilled from another teacher"):
        run_release(unreleased, "2l")


def test_an_index_of_documents_that_are_gone_cannot_be_released(unreleased: Path) -> None:
    from steps.release.run import run as release

    run_index(unreleased)
    write_table(unreleased / "data/ingest", "corpus", read_table(unreleased / "data/ingest", "corpus").slice(2))

    with pytest.raises(UserError, match=r"document '.*' is not in .*dvc repro index"):
        release(
            student="static",
            distill=unreleased / "models/distill/static",
            index=unreleased / "models/index",
            ingest=unreleased / "data/ingest",
            output=unreleased / "models/release/static",
            params=RELEASE,
            run=NullRun(),
        )
    assert not (unreleased / "models/release/static").exists()


def test_titles_follow_the_rows_of_the_index(tmp_path: Path) -> None:
    rows = [
        {"doc_id": f"d{number}", "dataset": "even" if number % 2 == 0 else "odd", "title": f"title {number}"}
        for number in range(9000)  # several batches
    ]
    write_table(tmp_path, "corpus", table_from_rows("corpus", [row | {"topic": "", "content": ""} for row in rows]))
    ids = {"even": [f"d{number}" for number in range(8998, -1, -2)], "odd": ["d8999", "d1", "d7"]}
    for dataset, doc_ids in ids.items():
        (tmp_path / "index" / dataset).mkdir(parents=True)
        pq.write_table(pa.table({"doc_id": doc_ids}), tmp_path / "index" / dataset / "doc_ids.parquet")
    write_titles(tmp_path, tmp_path / "index", list(ids))
    for dataset, doc_ids in ids.items():
        table = pq.read_table(tmp_path / "index" / dataset / "titles.parquet")
        assert table["doc_id"].to_pylist() == doc_ids
        assert table["title"].to_pylist() == [f"title {doc_id[1:]}" for doc_id in doc_ids]
    pq.write_table(pa.table({"doc_id": ["d1", "d2"]}), tmp_path / "index/odd/doc_ids.parquet")
    with pytest.raises(UserError, match=r"odd: document 'd2' is not in "):  # it is another data set's
        write_titles(tmp_path, tmp_path / "index", ["odd"])


def test_releases_share_the_index_on_disk(released: Path) -> None:
    name = "index/one/flat.faiss"
    assert (released / "models" / name).samefile(released / "models/release/2l" / name)


def test_a_limit_that_is_passed_leaves_no_release(unreleased: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"parity: the fp32 export of '.*' has cosine"), monkeypatch.context() as patch:
        patch.setattr("steps.release.run.LEAST_COSINE", 1.0)
        run_release(unreleased, "2l")
    assert not (unreleased / "models/release/2l").exists()


def test_both_manifests_name_the_template_of_the_documents(released: Path, unreleased: Path) -> None:
    assert load_release(released / "models/release/static").manifest.document == "{title}. {content}"
    template = DocumentTemplate("{title} {topic} {content}")
    corpus = read_table(unreleased / "data/ingest", "corpus")
    write_table(unreleased / "data/ingest", "corpus", corpus, metadata=template.metadata)
    folder = run_release(unreleased, "static")
    assert load_release(folder).manifest.document == template.template
    assert json.loads((folder / "index/manifest.json").read_text())["document"] == template.template
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 4}))
    with pytest.raises(UserError, match=r"format of the release is 4, this version reads 5;.*dvc repro"):
        load_release(folder)


def test_a_card_tells_what_a_release_is_and_how_it_is_used(
    released: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = released / "models/release/2l"
    text = (folder / "README.md").read_text()
    assert (folder / "query_encoder/README.md").read_text() == text
    front = ModelCard(text).data.to_dict()
    report = json.loads((folder / "report.json").read_text())
    assert (front["library_name"], front["metrics"]) == ("sentence-transformers", ["ndcg_at_10"])
    measured = {
        result["dataset"]["name"]: result["metrics"][0]["value"] for result in front["model-index"][0]["results"]
    }
    assert measured == {name: round(cost["total"]["before"], 4) for name, cost in report["dev"].items()}
    assert "base_model" not in front  # layers of the teacher have no name on a hub
    manifest, unjudged = load_release(folder).manifest, SimpleNamespace(costs={})
    for base, is_on_hub in (
        ("an-org/encoder", True),
        (f"an-org/encoder@{'0' * 40}", True),
        (str(folder), False),
        (None, False),
    ):
        assert ("base_model" in front_matter(manifest, unjudged, base)) == is_on_hub  # type: ignore[arg-type]
    monkeypatch.chdir(released)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, {})
    assert capsys.readouterr().out.count("\n") == 10
