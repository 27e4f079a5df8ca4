"""A release as mteb sees it: its protocol, the run's own embeddings behind it, and mteb itself."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from whole_run import write_lines

from bench import mteb_model
from bench.mteb_model import ReleaseModel
from slimtower.common.errors import UserError
from slimtower.serving.release import load_release
from steps.core.judged import read_judged_sets
from steps.core.measures import ndcg_at_10
from steps.core.tables import read_table
from steps.encoders.towers import encode, load_tower

# Parameters of mteb 2.26's EncoderProtocol (mteb/models/models_protocols.py) by method; those with * are named alone.
ASKED = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}


@pytest.mark.slow
def test_queries_are_the_releases_and_documents_the_indexs(released: Path) -> None:
    model = ReleaseModel(str(released / "models/release/2l"), None)
    release = load_release(released / "models/release/2l")
    texts = ["how to sum", "an axis of a matrix", "file"]
    queries = model.encode([{"text": texts[:2]}, {"text": texts[2:]}], prompt_type="query", **ASKED)
    np.testing.assert_allclose(queries, release.encode(texts), atol=1e-6)
    corpus = read_table(released / "data/ingest", "corpus").to_pylist()[:5]
    rows = {key: [row[column] for row in corpus] for key, column in (("title", "title"), ("body", "content"))}
    rows["text"] = [f"{title} {body}" for title, body in zip(rows["title"], rows["body"], strict=True)]
    documents = model.encode([rows], prompt_type="document", **ASKED)
    stored = np.load(released / "data/embed/documents.npy")[:5]
    np.testing.assert_allclose(documents, stored, atol=1e-4)
    np.testing.assert_allclose(model.similarity(queries, documents).numpy(), queries @ documents.T, rtol=1e-5)
    pairs = model.similarity_pairwise(queries, documents[:3]).numpy()
    np.testing.assert_allclose(pairs, (queries * documents[:3]).sum(axis=1), rtol=1e-4)
    untitled = model.encode([{"text": [row["content"] for row in corpus]}], prompt_type="document", **ASKED)
    tower = load_tower(released / "models/distill/2l/router", "document")
    np.testing.assert_allclose(untitled, encode(tower, [row["content"] for row in corpus], "document"), atol=1e-6)


@pytest.mark.medium
def test_another_students_router_is_refused(released: Path) -> None:
    with pytest.raises(UserError, match="static/router: the embedding of the probe"):
        ReleaseModel(str(released / "models/release/2l"), router=str(released / "models/distill/static/router"))


@pytest.mark.slow
def test_mteb_itself_runs_a_local_task_and_finds_what_the_release_finds(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (judged,) = read_judged_sets(released / "data/ingest", ["test"])
    corpus = [row for row in read_table(released / "data/ingest", "corpus").to_pylist() if row["dataset"] == "one"]
    texts = [{"_id": row["doc_id"], "title": row["title"], "text": row["content"]} for row in corpus]
    write_lines(tmp_path / "local/corpus.jsonl", texts)
    queries = zip(judged.query_ids, judged.texts, strict=True)
    write_lines(tmp_path / "local/queries.jsonl", [{"_id": query, "text": text} for query, text in queries])
    grades = [(query, doc, grade) for query, docs in judged.qrels.items() for doc, grade in docs.items()]
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, grade)) for grade in grades)]
    (tmp_path / "local/qrels").mkdir()
    (tmp_path / "local/qrels/test.tsv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sys, "argv", ["bench.mteb_model", "2l", str(tmp_path / "local"), "--run", str(released)])
    mteb_model.main()
    release = load_release(released / "models/release/2l")
    scores, ids = release.search("one", release.encode(judged.texts), 32, "flat")
    expected = ndcg_at_10(judged.qrels, judged.query_ids, ids, list(scores)).mean()
    match = re.search(r"local: nDCG@10 ([\d.]+) \(slimtower/2l\)", capsys.readouterr().out)
    assert match and float(match[1]) == pytest.approx(expected, abs=2e-4)
